package engine

import (
	"errors"
	"fmt"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/pool"
)

// The path check's writes where they are copies (rule byCopy): each side maps, for its peer alone, what
// the peer is to map and write to, and gives it back when the check has passed.

// mapForCheck maps what one peer is to map and write to for its path check. The caller holds the
// lock, which is given up for that.
func (e *Endpoint) mapForCheck(landing *pool.Arena) error {
	slab, err := e.mapSlab(func() (*pool.Slab, error) { return landing.Map(framing.MappedProbeLength) })
	switch {
	case e.core.err != nil:
		if err == nil {
			e.giveBack(slab)
		}
		return e.core.err
	case errors.Is(err, pool.ErrBudget):
		return fmt.Errorf("%w: for the path check: %w", ErrMemory, err)
	case err != nil: // memfd_create(2) is forbidden, or descriptors are short
		return fmt.Errorf("%w: %w", ErrUnmapped, err)
	}
	landing.Add(slab)
	return nil
}

// leaveMapped notes that the check needs no more what the peer has granted for it.
func (p *peer) leaveMapped() {
	if m := p.probe.mapped; m != nil {
		p.probe.mapped = nil
		m.change(func() { m.leases-- })
	}
}

// dropCopyTo frees what the peer was to map for its check.
func (p *peer) dropCopyTo() {
	if p.copyTo != nil {
		p.landing.Free(p.copyTo)
		p.copyTo = nil
		p.c.discard(p.landing.Trim(0)...) // nothing, if the peer is lost: see quarantineLanding
	}
}

// copyProbe makes our write of n bytes where it is a copy.
func (p *peer) copyProbe(n uint32) {
	mem := p.probe.mapped.within(&p.probe.grant.Remote, uint64(n))
	p.leaveMapped()
	if mem == nil {
		if p.probe.state != probeDials { // it listens, and may have told before that what came was right
			p.tellProbed(framing.ProbeUnmapped)
		}
		p.wrong(ErrUnmapped, fmt.Sprint(p.unmapped))
		return
	}
	framing.FillPattern(mem, p.c.probes.seed)
	p.announce(&txOp{large: framing.Large{Lease: p.probe.grant.Index, Seq: p.probe.grant.Seq, Length: n}}, framing.FlagLanded)
	p.met(needWritten)
}
