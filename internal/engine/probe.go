package engine

import (
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/pool"
)

// The path check: before a peer carries conns, each side moves to the other what conns
// will move, in the same way. A Ping and a Pong are as long as frames get. Then one RDMA
// write (over shm a copy) goes each way, from registered memory into memory granted for it, with the
// notification that the writer's rule calls for, and the receiver compares. So a provider
// that does not do what it says is noticed here, and not in a user's data.
//
//	event                          dialing side                 listening side
//	                               sends Ping
//	Ping arrives                                                sends Pong
//	Pong arrives                   waits for memory to grant
//	memory is free                 sends Probe                  sends Probe, writes
//	Probe arrives                  writes                       waits for memory to grant
//	notice of the peer's write     compares                     compares, sends Probed
//	Probed, own write complete     passed

// probeNeeds is what a peer's path check waits for.
type probeNeeds uint8

const (
	needPong probeNeeds = 1 << iota
	needMemory
	needProbe   // the peer's
	needNotice  // of the peer's write
	needPost    // of our write
	needWritten // its completion
	needProbed

	needsOfDialer   = needPong | needMemory | needProbe | needNotice | needPost | needWritten | needProbed
	needsOfListener = needMemory | needNotice | needPost | needWritten
)

// probeState is how far a peer's path check has come.
type probeState uint8

const (
	probeNone    probeState = iota // has not begun
	probeDials                     // goes on, and we dial
	probeListens                   // goes on, and the peer dials
	probePassed                    // what was to arrive here has; if we dial, also what was to arrive there
	probeFailed
)

// probe is one peer's path check.
type probe struct {
	state  probeState
	needs  probeNeeds
	slot   *probeSlot    // what the peer may write to
	grant  framing.Probe // the peer's
	mapped *mappedSlab   // byCopy: where that lies, once it is mapped or cannot be
	seed   uint64        // of what the peer writes
	err    error         // probeFailed: why
}

// probeSlot is a piece of the memory that peers write to for their path check, one peer
// after the other.
type probeSlot struct {
	index uint16
	seq   uint16 // tells the late write of a peer that was given up from the next peer's
	mem   *pool.Block
	peer  *peer
	since time.Time // when it was granted
	doubt time.Time // until then a peer that was given up may still write
}

// probes is what the path checks of an endpoint share: one region to write to, one
// chunk to write from. Both are there from the first check until the endpoint goes,
// since nothing tells when a peer that was given up has written for the last time.
type probes struct {
	memory *pool.Arena // nil if peers map what they write to: see mapForCheck
	source *pool.Slots
	seed   uint64 // of what is in source
	// The dialing side has slots of its own. Otherwise two endpoints that dial each other
	// would wait for each other's slots.
	dialing, listening []*probeSlot
	waiting            []*peer
}

// probeSlots is how many path checks go on at once in each role. probeTurn is how long each may take while others wait: less than
// a dial allows a fabric that is not its only choice.
const (
	probeSlots = 4
	probeTurn  = 400 * time.Millisecond
)

// ErrContents: the fabric delivers something other than what was sent.
var ErrContents = errors.New("the fabric delivers wrong contents")

// ErrUnmapped: the peer's memory cannot be mapped, or none can be made that it could map.
var ErrUnmapped = errors.New("the two processes cannot map each other's memory")

// errUnsure: the check failed, but the fabric may not be to blame.
var errUnsure = errors.New("the path check came to no result, because of other peers: try again")

// isProbe reports whether a lease index is that of a probeSlot.
func isProbe(index uint16) bool { return index >= pool.MaxLeases }

// mapProbes maps what path checks need. The caller holds the lock, which is given up for that.
func (e *Endpoint) mapProbes() (err error) {
	c := e.core
	if c.err != nil || c.probes.source != nil {
		return c.err
	}
	var ps probes
	e.unlocked(func() { ps, err = openProbes(c) })
	if err != nil {
		return fmt.Errorf("%w: for the path check: %w", ErrMemory, err)
	}
	c.probes = ps
	return c.err
}

// openProbes is called without the lock, so it looks at nothing of c that changes.
func openProbes(c *core) (ps probes, err error) {
	source := pool.NewSlots(c.cfg.Budget, c.fab, framing.ProbeLength)
	if err := source.Grow(1); err != nil {
		return ps, err
	}
	h := fnv.New64a()
	_, _ = h.Write(c.fab.Name()) // so that other endpoints' contents differ
	ps.source, ps.seed = source, h.Sum64()
	slot, _ := source.Get()
	framing.FillPattern(source.Bytes(slot), ps.seed)
	if c.rule == byCopy {
		return ps, nil
	}
	memory := pool.NewArena(c.cfg.Budget, c.fab, pool.AccessRemoteWrite, 2*probeSlots*framing.ProbeLength)
	var slots []*probeSlot
	for i := range 2 * probeSlots {
		mem, err := memory.Alloc(framing.ProbeLength)
		if err != nil {
			return ps, errors.Join(err, memory.Close(), source.Close())
		}
		slots = append(slots, &probeSlot{index: framing.MaxLease - uint16(i), mem: mem})
	}
	ps.memory, ps.dialing, ps.listening = memory, slots[:probeSlots], slots[probeSlots:]
	return ps, nil
}

// parts is what openProbes has mapped.
func (ps *probes) parts() (list []registered) {
	if ps.source != nil {
		list = append(list, ps.source)
	}
	if ps.memory != nil {
		list = append(list, ps.memory)
	}
	return list
}

// startCheck begins the path check, as the dialing side.
func (p *peer) startCheck() {
	p.endCheck(probeNone) // one that a listening side began before its turn
	p.leaveMapped()
	p.probe = probe{state: probeDials, needs: needsOfDialer}
	p.control(ctlFrame{t: framing.TypePing, pos: p.c.probes.seed, long: true})
}

// checked reports whether the path check has ended.
func (p *peer) checked() bool { return p.probe.state >= probePassed }

// met notes that n has happened. It reports false if the check was not waiting for that.
func (p *peer) met(n probeNeeds) bool {
	const arrived = needMemory | needProbe | needNotice
	before := p.probe.needs
	p.probe.needs &^= n
	if before&arrived != 0 && p.probe.needs&arrived == 0 {
		p.compare()
	}
	if p.probe.needs == 0 && p.probe.state == probeDials {
		p.endCheck(probePassed)
	}
	return before&n != 0
}

// endCheck ends the check, and gives back what it has taken.
func (p *peer) endCheck(s probeState) {
	slot, ps := p.probe.slot, &p.c.probes
	if slot != nil && p.probe.needs&needNotice != 0 {
		slot.doubt = p.c.now().Add(p.c.cfg.DeadAfter)
	}
	p.probe.state = s
	if p.probe.needs &= needPost | needWritten; s == probeFailed { // the other side's check still needs our write
		p.probe.needs = 0
		p.leaveMapped()
	}
	p.pong.signal()
	ps.waiting = slices.DeleteFunc(ps.waiting, func(q *peer) bool { return q == p })
	if s == probePassed { // after a failure the peer may still map it, to learn why
		p.dropCopyTo()
	}
	if slot == nil {
		return
	}
	slot.peer, p.probe.slot = nil, nil
	waiting := ps.waiting
	ps.waiting = nil // giving a peer memory may make it fail, which ends a check as well
	for _, q := range waiting {
		q.awaitMemory()
	}
}

// evict takes the memory from peers that have had it for probeTurn without finishing their
// check, if others wait for it: they may be stopped.
func (ps *probes) evict(now time.Time) {
	if len(ps.waiting) == 0 {
		return
	}
	for _, s := range slices.Concat(ps.dialing, ps.listening) {
		p := s.peer
		if p == nil || now.Sub(s.since) < probeTurn {
			continue
		}
		if p.probe.state == probeListens {
			p.tellProbed(framing.ProbeUnsure)
		}
		p.wrong(errUnsure, "it has taken too long while others wait")
	}
}

// doEvict is called by a timer that is set while some peer waits.
func (e *Endpoint) doEvict() {
	e.evicting.Store(false)
	if e.poller.Closing() {
		return
	}
	e.enter()
	e.core.probes.evict(e.core.now())
	e.leave()
}

// wrong fails the check with err; what says what was wrong.
func (p *peer) wrong(err error, what string) {
	p.probe.err = fmt.Errorf("provider %s: %w: %s", p.c.attr.Provider, err, what)
	p.endCheck(probeFailed)
}

// pinged answers a Ping.
func (p *peer) pinged(h *framing.Header, payload []byte) error {
	if len(payload) == 0 || !framing.HasPattern(payload, h.Pos) {
		p.tellProbed(framing.ProbeWrong)
	} else {
		p.control(ctlFrame{t: framing.TypePong, pos: p.c.probes.seed, long: true})
	}
	return nil
}

// ponged takes in the answer to our Ping.
func (p *peer) ponged(h *framing.Header, payload []byte) {
	switch {
	case !p.met(needPong):
	case len(payload) == 0 || !framing.HasPattern(payload, h.Pos):
		p.wrong(ErrContents, "a message from the peer")
	default:
		p.awaitMemory()
	}
}

// awaitMemory grants the peer memory as soon as some is free.
func (p *peer) awaitMemory() {
	if !p.probeMemory() {
		p.c.probes.waiting = append(p.c.probes.waiting, p)
	}
}

// probeMemory grants the peer memory for its write, if some is free.
func (p *peer) probeMemory() bool {
	ps, s := &p.c.probes, p.freeProbe()
	if s == nil {
		return false
	}
	s.peer, s.since, p.probe.slot = p, p.c.now(), s
	s.seq++
	clear(s.mem.Bytes) // what lay there before proves nothing
	f := ctlFrame{t: framing.TypeProbe, pos: ps.seed, n: framing.ProbeSize}
	(&framing.Probe{Index: s.index, Seq: s.seq, Writes: p.c.probeWrites(), Remote: p.remote(s.mem)}).Encode(f.payload[:])
	p.control(f)
	p.met(needMemory)
	return true
}

// freeProbe returns memory that the peer may write to, nil if none is free.
func (p *peer) freeProbe() *probeSlot {
	if p.copyTo != nil {
		return &probeSlot{index: framing.MaxLease, mem: p.copyTo}
	}
	slots := p.c.probes.listening
	if p.probe.state == probeDials {
		slots = p.c.probes.dialing
	}
	slots = slices.DeleteFunc(slices.Clone(slots), func(s *probeSlot) bool { return s.peer != nil })
	if len(slots) == 0 {
		return nil
	}
	return slices.MinFunc(slots, func(a, b *probeSlot) int { return a.doubt.Compare(b.doubt) })
}

// probeWrites is how much this side writes for a path check, in bytes.
func (c *core) probeWrites() uint32 {
	if c.rule == byNothing {
		return 0
	}
	return uint32(min(uint64(c.probeLength()), c.attr.MaxRMASize))
}

// probeLength is how much memory is granted for a path check, in bytes.
func (c *core) probeLength() int {
	if c.rule == byCopy {
		return framing.MappedProbeLength
	}
	return framing.ProbeLength
}

// handleProbe takes in a frame that belongs to a path check, unless that is over.
func (p *peer) handleProbe(h *framing.Header, payload []byte) error {
	switch {
	case h.Stream == 0 && h.Type == framing.TypeProbe && (p.probe.state == probeNone || p.probe.needs&needProbe != 0):
		return p.probed(h, payload)
	case h.Stream == 0 && h.Type == framing.TypeProbed && p.probe.state == probeDials:
		return p.verdict(payload)
	}
	p.c.stats.FramesStray++
	return nil
}

// probed takes in the peer's Probe.
func (p *peer) probed(h *framing.Header, payload []byte) error {
	var grant framing.Probe
	if err := grant.Decode(payload); err != nil {
		return err
	}
	if int(grant.Writes) > p.c.probeLength() {
		return fmt.Errorf("%w: a write of %d bytes for the path check", errProtocol, grant.Writes)
	}
	p.probe.grant, p.probe.seed = grant, h.Pos
	if p.probe.state == probeNone {
		p.probe.state, p.probe.needs = probeListens, needsOfListener
		p.awaitMemory()
	}
	if grant.Writes == 0 {
		p.met(needNotice)
	}
	if p.c.rule == byCopy {
		p.mapping(&grant.Remote, func(m *mappedSlab) {
			if p.probe.grant == grant && p.probe.mapped == nil && p.probe.needs&needPost != 0 {
				p.probe.mapped = m
				m.change(func() { m.leases++ })
				p.c.touch(p)
			}
		})
	}
	p.met(needProbe)
	return nil
}

// postProbe posts our write once the peer has said where to.
func (p *peer) postProbe() {
	if !p.probePostable() || !p.mayData(2) {
		return
	}
	c, g := p.c, &p.probe.grant
	n := c.probeWrites()
	p.met(needPost)
	switch {
	case n == 0:
		p.met(needWritten)
		return
	case c.rule == byCopy:
		p.copyProbe(n)
		return
	}
	c.strategy().post(p, ringWrite{
		op: fabric.Op{
			Kind: fabric.Write, To: p.addr, Buf: c.probes.source.Bytes(0)[:n], Desc: c.probes.source.Desc(0),
			Remote: g.Addr, Key: g.Key, Deliver: c.deliver,
		},
		tx: txOp{peer: p, probe: true, large: framing.Large{Lease: g.Index, Seq: g.Seq, Length: n}},
	})
}

func (p *peer) probePostable() bool {
	return p.probe.needs&needPost != 0 && p.probe.needs&(needMemory|needProbe) == 0 &&
		(p.c.rule != byCopy || p.probe.mapped != nil)
}

// probeWritten handles the completion of our write.
func (p *peer) probeWritten(t *txOp) {
	p.c.strategy().done(p, *t)
	p.met(needWritten)
}

// probeLanded takes in the completion data of a write for a path check.
func (c *core) probeLanded(data uint64) {
	imm := framing.Immediate(data)
	for _, list := range [][]*probeSlot{c.probes.dialing, c.probes.listening} {
		for _, s := range list {
			if p := s.peer; p != nil && s.index == imm.Lease() && framing.SeqAfter(s.seq, imm.Seq()) == 0 && p.believes(data) {
				if p.useSlot() {
					c.grant(p)
					p.met(needNotice)
				}
				return
			}
		}
	}
	c.stats.WritesStray++
}

// compare compares what the peer has written with what it was to write.
func (p *peer) compare() {
	const what = "a write from the peer"
	slot, result := p.probe.slot, framing.ProbeRight
	if !framing.HasPattern(slot.mem.Bytes[:p.probe.grant.Writes], p.probe.seed) {
		if result = framing.ProbeWrong; p.c.now().Before(slot.doubt) {
			result = framing.ProbeUnsure
		}
	}
	if p.probe.state == probeListens {
		p.tellProbed(result)
	}
	switch {
	case result == framing.ProbeUnsure:
		p.wrong(errUnsure, what)
	case result == framing.ProbeWrong:
		p.wrong(ErrContents, what)
	case p.probe.state == probeListens:
		p.endCheck(probePassed)
	}
}

func (p *peer) tellProbed(r framing.ProbeResult) {
	f := ctlFrame{t: framing.TypeProbed, n: framing.ProbedSize}
	r.Encode(f.payload[:])
	p.control(f)
}

// verdict takes in what the listening side says about what was sent from here.
func (p *peer) verdict(payload []byte) error {
	r, err := framing.DecodeProbed(payload)
	const what = "at the peer, of what was sent from here"
	switch {
	case err != nil:
	case r == framing.ProbeRight:
		p.met(needProbed)
	case r == framing.ProbeUnsure:
		p.wrong(errUnsure, what)
	case r == framing.ProbeUnmapped:
		p.wrong(ErrUnmapped, "the peer cannot map memory of this process (may it open its files in /proc: same user, group and capabilities? or is it short of descriptors? see docs/containers.md)")
	default:
		p.wrong(ErrContents, what)
	}
	return err
}
