package engine

import (
	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/fabric"
)

// How a peer learns that large data has landed: one strategy for each rule of SPEC.md section 5. The
// writer chooses it by what its endpoint offers, and its Attach says so, so that the reader believes no
// other completion data. A path check makes its write by the same strategy.
//
//	rule        the write               what announces it
//	byCQData    fi_writedata            its completion data says that it has landed, and a Large frame
//	                                    where it belongs; without one it continues the write before it
//	bySAW       fi_write                a Large frame behind it, which arrives after it
//	byDeliver   fi_write, and           a Large frame after its completion, which means delivery
//	            FI_DELIVERY_COMPLETE
//	byCopy      a copy: see mapped.go   a Large frame after the copy
//	byBareData  as byCQData, but the completion data has no room for a proof of whose write it is
//	byNothing   none                    all data goes in frames
//
// With a Large frame for every write, streams and round trips of 64 KiB and 1 MiB over net took 1.2 to
// 1.3 times as long (medians of 15 pairs, AMD EPYC, libfabric 1.17): hence writes that continue others.

// Rule is how the target learns that large data has landed: the number of a rule of SPEC.md section 5.
type Rule uint8

const (
	byNothing Rule = iota
	byCQData
	bySAW
	byDeliver
	byCopy
	byBareData
)

// proofSize is how many bytes completion data must have for a proof to fit in.
const proofSize = 8

// ChooseRule takes the cheapest rule that a offers, but completion data without a proof only where
// send-after-write is not to be had.
func ChooseRule(a fabric.Attr) Rule {
	switch {
	case a.SameHost:
		return byCopy
	case a.CQDataSize >= proofSize:
		return byCQData
	case a.Order&fabric.SendAfterWrite != 0:
		return bySAW
	case a.CQDataSize >= 4:
		return byBareData
	case a.DeliveryComplete:
		return byDeliver
	}
	return byNothing
}

// strategy is what depends on the rule.
type strategy struct {
	text string // for people
	// slots is how many of the peer's receive slots a write to a ring needs: for the Large frame, and
	// for completion data. A write that continues another gives the first one back, and a copy takes
	// its slot when it has ended.
	slots uint32
	// post queues a write that is done by the fabric, and what can be said of it before it is complete.
	post func(p *peer, w ringWrite)
	// done says what had to wait for its completion.
	done func(p *peer, t txOp)
}

var strategies = [...]strategy{
	byNothing:  {text: "send"},
	byCQData:   {text: "RDMA write with completion data", slots: 2, post: postWithData, done: saidBefore},
	bySAW:      {text: "RDMA write, then send", slots: 1, post: postThenSend, done: saidBefore},
	byDeliver:  {text: "RDMA write, then send after delivery", slots: 1, post: postAlone, done: sendAfter},
	byCopy:     {text: "copy to a ring that both processes map, then send", slots: 1},
	byBareData: {text: "RDMA write with completion data", slots: 2, post: postWithData, done: saidBefore},
}

// String says how large data travels by the rule.
func (r Rule) String() string { return strategies[r].text }

// strategy is that of the endpoint's rule.
func (c *core) strategy() *strategy { return &strategies[c.rule] }

// ringWrite is one RDMA write: to a stream's ring or, if tx.stream is nil, for a path check. It is passed
// by value: a pointer passed to a function of a table would move it to the heap.
type ringWrite struct {
	op        fabric.Op
	tx        txOp // its large and pos announce the write
	continues bool // it is as long as the write before it, and follows that in the stream
}

func postWithData(p *peer, w ringWrite) {
	w.op.Kind, w.op.Data = fabric.WriteData, p.completionData(&w.tx.large, w.continues)
	p.out = append(p.out, outOp{w.op, w.tx})
	switch {
	case w.tx.stream == nil:
		p.spend(1)
	case w.continues:
		p.unspend(1)
	default:
		p.announce(&w.tx, 0)
	}
}

func postThenSend(p *peer, w ringWrite) {
	p.out = append(p.out, outOp{w.op, w.tx})
	p.announce(&w.tx, framing.FlagLanded)
}

func postAlone(p *peer, w ringWrite) { p.out = append(p.out, outOp{w.op, w.tx}) }

func saidBefore(*peer, txOp) {}

func sendAfter(p *peer, t txOp) {
	if p.err != nil {
		return
	}
	f := t.largeFrame(framing.FlagLanded)
	if t.stream == nil {
		p.control(f)
		return
	}
	p.prepaid.push(f)
	p.c.touch(p)
}

// announce queues a Large frame in a send slot, which the caller knows to be free. The receive slot
// has been taken before, unless it is for a path check.
func (p *peer) announce(t *txOp, flags framing.Flags) {
	f := t.largeFrame(flags)
	if t.stream == nil {
		p.control(f)
		return
	}
	slot, _ := p.c.tx.Get()
	n := copy(p.c.tx.Bytes(slot)[framing.HeaderSize:], f.payload[:f.n])
	p.queue(&f, t.stream, slot, n, true)
}

// largeFrame is the frame that announces the write, and that is now about to leave.
func (t *txOp) largeFrame(flags framing.Flags) ctlFrame {
	f := ctlFrame{t: framing.TypeLarge, flags: flags, pos: t.pos, n: framing.LargeSize}
	if t.stream != nil {
		f.stream, f.leaves = t.stream.id, t.stream
		t.stream.leaving++
	}
	t.large.Encode(f.payload[:])
	return f
}

// completionData returns the completion data of a write to the peer, with the proof if there
// is room for it.
func (p *peer) completionData(a *framing.Large, continues bool) uint64 {
	imm := framing.MakeImmediate(a.Lease, a.Seq, continues)
	if p.c.rule == byCQData {
		return imm.Proven(p.proofOut)
	}
	return uint64(imm)
}

// believes reports whether completion data may be the peer's. An endpoint whose completion data
// is shorter than the peer's cannot tell.
func (p *peer) believes(data uint64) bool {
	switch {
	case p.err != nil || p.rule != byCQData && p.rule != byBareData:
		return false
	case p.rule == byBareData || p.c.attr.CQDataSize < proofSize:
		return true
	}
	return framing.Proven(data, p.proofIn)
}

// lease notes to which peer a lease was granted, until it is granted to another: the slot that a
// write has taken is free again, whatever has become of the lease.
func (c *core) lease(index uint16, p *peer) {
	for len(c.lessees) <= int(index) {
		c.lessees = append(c.lessees, nil)
	}
	c.lessees[index] = p
}

// landed takes in the completion data of an RDMA write. All that it believes is that a write
// which we had granted is complete. If the peer to which we had granted it has room for a proof
// in completion data, or another way to report writes, nobody else is believed.
func (c *core) landed(data uint64) {
	imm := framing.Immediate(data)
	if isProbe(imm.Lease()) {
		c.probeLanded(data)
		return
	}
	var p *peer
	if int(imm.Lease()) < len(c.lessees) {
		p = c.lessees[imm.Lease()]
	}
	if p == nil || !p.believes(data) {
		c.stats.WritesStray++
		return
	}
	if !p.useSlot() {
		return
	}
	c.grant(p)
	if s, w := c.writeOf(imm); w == nil || w.landed {
		c.stats.WritesStray++
	} else {
		w.landed, w.continues = true, imm.Continues()
		p.violates(s.advance())
	}
}

// writeOf returns the write that completion data names, and its stream; nil if no such write can be
// in flight.
func (c *core) writeOf(imm framing.Immediate) (*stream, *landing) {
	l := c.leases.Lookup(imm.Lease())
	if l == nil {
		return nil, nil
	}
	s := l.Owner.(*stream)
	if in := s.leaseNamed(imm.Lease()); !s.gone() && in != nil && in.Lease == l {
		return s, in.slot(imm.Seq())
	}
	return nil, nil
}
