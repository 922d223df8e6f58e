package engine

import (
	"errors"
	"fmt"
	"hash/fnv"
	"slices"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/pool"
)

// The path check: before a peer carries conns, each side moves to the other what conns
// will move, in the way in which they will. A Ping and a Pong are as long as frames get,
// then one RDMA write goes each way, from registered memory into memory granted for it,
// with the notification that the writer's rule makes, and whoever receives compares. It
// is noticed here, and not in a user's data, that a provider does not do what it says.
//
//	event                          dialing side                 listening side
//	                               Ping
//	Ping                                                        Pong
//	Pong                           asks for memory
//	memory is there                Probe                        Probe, write
//	Probe                          write                        asks for memory
//	notice of the peer's write     compares                     compares, Probed
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

// probeState is how far a peer's path check is.
type probeState uint8

const (
	probeNone    probeState = iota // has not begun
	probeDials                     // goes on, and we dial
	probeListens                   // goes on, and the peer dials
	probePassed                    // what was to arrive here has; if we dial, there as well
	probeFailed
)

// probe is one peer's path check.
type probe struct {
	state probeState
	needs probeNeeds
	slot  *probeSlot    // what the peer may write to
	grant framing.Probe // the peer's
	seed  uint64        // of what the peer writes
	// early is completion data that came before the peer's Probe.
	early    uint64
	hasEarly bool
	err      error // probeFailed: what the dialing side says
}

// probeSlot is a piece of the memory that peers write to for their path check. It is
// theirs one after the other.
type probeSlot struct {
	index uint16
	mem   *pool.Block
	peer  *peer
}

// probes is what the path checks of an endpoint share: one region to write to, one
// chunk to write from. Both are there from the first check until the endpoint goes,
// since nothing tells when a peer that was given up has written its last.
type probes struct {
	memory *pool.Arena
	source *pool.Slots
	seed   uint64 // of what is in source
	// The dialing side has slots of its own: two endpoints that dial each other would
	// else wait for each other's.
	dialing, listening []*probeSlot
	waiting            []*peer
}

// probeSlots is how many path checks go on at once in each role, where an endpoint has
// more than one peer.
const probeSlots = 2

// ErrContents: the fabric delivers something else than was sent.
var ErrContents = errors.New("the fabric delivers wrong contents")

// isProbe reports that a lease index is that of a probeSlot.
func isProbe(index uint16) bool { return index >= pool.MaxLeases }

// renew gives the slot an index that it has not had for long: the write of a peer that was
// given up may come yet, and is not the next one's.
func (s *probeSlot) renew() {
	if s.index -= 2 * probeSlots; !isProbe(s.index) {
		s.index += framing.MaxLease + 1 - pool.MaxLeases
	}
}

// open maps what path checks need.
func (ps *probes) open(c *core) error {
	if ps.memory != nil {
		return nil
	}
	source := pool.NewSlots(c.cfg.Budget, c.fab, framing.ProbeLength)
	if err := source.Grow(1); err != nil {
		return err
	}
	n := 2 * probeSlots
	if c.attr.PerPeer {
		n = 1
	}
	memory := pool.NewArena(c.cfg.Budget, c.fab, pool.AccessRemoteWrite, n*framing.ProbeLength)
	var slots []*probeSlot
	for i := range n {
		mem, err := memory.Alloc(framing.ProbeLength)
		if err != nil {
			return errors.Join(err, memory.Close(), source.Close())
		}
		slots = append(slots, &probeSlot{index: framing.MaxLease - uint16(i), mem: mem})
	}
	ps.dialing, ps.listening = slots[:(n+1)/2], slots[n/2:]
	h := fnv.New64a()
	_, _ = h.Write(c.fab.Name()) // others' contents differ
	ps.memory, ps.source, ps.seed = memory, source, h.Sum64()
	slot, _ := source.Get()
	framing.FillPattern(source.Bytes(slot), ps.seed)
	return nil
}

// parts is what open has mapped.
func (ps *probes) parts() []registered {
	if ps.memory == nil {
		return nil
	}
	return []registered{ps.memory, ps.source}
}

// startCheck begins the path check, as the dialing side.
func (p *peer) startCheck() {
	p.endCheck(probeNone) // that of a listening side which does not wait for its turn
	p.probe = probe{state: probeDials, needs: needsOfDialer}
	p.control(ctlFrame{t: framing.TypePing, pos: p.c.probes.seed, long: true})
}

// checked reports that the path check has ended.
func (p *peer) checked() bool { return p.probe.state >= probePassed }

// met takes away what the check waits for. It reports false if that was not awaited.
func (p *peer) met(n probeNeeds) bool {
	if p.probe.needs&n == 0 {
		return false
	}
	if p.probe.needs &^= n; p.probe.needs == 0 && p.probe.state == probeDials {
		p.endCheck(probePassed)
	}
	return true
}

// endCheck ends the check, and gives back what it has taken.
func (p *peer) endCheck(s probeState) {
	p.probe.state = s
	p.pong.signal()
	ps := &p.c.probes
	ps.waiting = slices.DeleteFunc(ps.waiting, func(q *peer) bool { return q == p })
	if p.probe.slot == nil {
		return
	}
	p.probe.slot.peer, p.probe.slot = nil, nil
	waiting := ps.waiting
	ps.waiting = nil // who is given memory may fail by that, which ends a check as well
	for _, q := range waiting {
		q.awaitMemory()
	}
}

// wrong ends the check of a dialing side, since something else has arrived than was
// sent.
func (p *peer) wrong(what string) {
	p.probe.err = fmt.Errorf("provider %s: %w: %s", p.c.attr.Provider, ErrContents, what)
	p.endCheck(probeFailed)
}

// pinged answers a Ping.
func (p *peer) pinged(h *framing.Header, payload []byte) {
	if !framing.HasPattern(payload, h.Pos) {
		p.tellProbed(framing.ProbeWrong)
		return
	}
	p.control(ctlFrame{t: framing.TypePong, pos: p.c.probes.seed, long: true})
}

// ponged takes in the answer to our Ping.
func (p *peer) ponged(h *framing.Header, payload []byte) {
	switch {
	case !p.met(needPong):
	case !framing.HasPattern(payload, h.Pos):
		p.wrong("a message from the peer")
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
	ps := &p.c.probes
	slots := ps.listening
	if p.probe.state == probeDials {
		slots = ps.dialing
	}
	i := slices.IndexFunc(slots, func(s *probeSlot) bool { return s.peer == nil })
	if i < 0 {
		return false
	}
	s := slots[i]
	s.peer, p.probe.slot = p, s
	s.renew()
	clear(s.mem.Bytes) // what lay there before proves nothing
	f := ctlFrame{t: framing.TypeProbe, flags: p.c.wantFlags(), pos: ps.seed, n: framing.ProbeSize}
	(&framing.Probe{Index: s.index, Writes: p.c.probeWrites(), Addr: s.mem.Addr, Key: s.mem.Key}).Encode(f.payload[:])
	p.control(f)
	met := p.met(needMemory)
	if p.probe.state == probeListens && p.probe.grant.Writes == 0 {
		p.noticed() // nothing will come
	}
	return met
}

// probeWrites is how much this side writes for a path check, in bytes.
func (c *core) probeWrites() uint32 {
	if c.rule == byNothing {
		return 0
	}
	return uint32(min(framing.ProbeLength, c.attr.MaxRMASize))
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

// probed takes the peer's Probe in.
func (p *peer) probed(h *framing.Header, payload []byte) error {
	var grant framing.Probe
	if err := grant.Decode(payload); err != nil {
		return err
	}
	if p.probe.state == probeNone {
		p.probe.state, p.probe.needs = probeListens, needsOfListener
		defer p.awaitMemory()
	}
	p.probe.grant, p.probe.seed = grant, h.Pos
	p.takeWay(h.Flags)
	switch {
	case p.probe.state != probeDials:
	case grant.Writes == 0:
		p.met(needNotice)
	case p.probe.needs&needNotice == 0: // a frame that was faster
		p.compare()
	}
	p.met(needProbe)
	if p.probe.hasEarly {
		p.probe.hasEarly = false
		p.probeLanded(p.probe.early)
	}
	return nil
}

// postProbe posts our write once the peer has told where to.
func (p *peer) postProbe() {
	if !p.probePostable() || !p.mayData(2) {
		return
	}
	c, g := p.c, &p.probe.grant
	n := c.probeWrites()
	p.met(needPost)
	if n == 0 {
		p.met(needWritten)
		return
	}
	op := fabric.Op{
		Kind: fabric.Write, To: p.addr, Buf: c.probes.source.Bytes(0)[:n], Desc: c.probes.source.Desc(0),
		Remote: g.Addr, Key: g.Key, Deliver: c.deliver,
	}
	if c.rule == byCQData {
		p.used++
		op.Kind, op.Data = fabric.WriteData, p.completionData(framing.MakeImmediate(g.Index, 0, false))
	}
	p.out = append(p.out, outOp{op, txOp{peer: p, probe: true}})
	if c.rule == bySAW {
		p.tellWritten()
	}
}

func (p *peer) probePostable() bool {
	return p.probe.needs&needPost != 0 && p.probe.needs&(needMemory|needProbe) == 0
}

// probeWritten takes the completion of our write in.
func (p *peer) probeWritten() {
	if p.c.rule == byDeliver {
		p.tellWritten()
	}
	p.met(needWritten)
}

// tellWritten tells that our write has landed, where completion data does not.
func (p *peer) tellWritten() {
	f := ctlFrame{t: framing.TypeLarge, flags: framing.FlagLanded, n: framing.LargeSize}
	(&framing.Large{Lease: p.probe.grant.Index, Length: p.c.probeWrites()}).Encode(f.payload[:])
	p.control(f)
}

// probeLanded takes in the completion data of a write for a path check.
func (c *core) probeLanded(data uint64) {
	for _, list := range [][]*probeSlot{c.probes.dialing, c.probes.listening} {
		for _, s := range list {
			if s.peer != nil && s.index == framing.Immediate(data).Lease() {
				s.peer.probeLanded(data)
				return
			}
		}
	}
	c.stats.WritesStray++
}

func (p *peer) probeLanded(data uint64) {
	switch {
	case p.probe.needs&needProbe != 0: // which says what to believe
		p.probe.early, p.probe.hasEarly = data, true
	case p.silent || p.proves && !framing.Proven(data, p.proofIn):
		p.c.stats.WritesStray++
	case p.useSlot():
		p.granted++
		p.c.touch(p)
		p.noticed()
	}
}

// noticed takes in that the peer's write is complete.
func (p *peer) noticed() {
	if p.probe.needs&needNotice != 0 && p.probe.needs&needProbe == 0 {
		p.compare()
	}
	p.met(needNotice)
}

// compare looks at what the peer has written.
func (p *peer) compare() {
	n := p.probe.grant.Writes
	right := n == 0 || p.probe.slot != nil && framing.HasPattern(p.probe.slot.mem.Bytes[:n], p.probe.seed)
	switch {
	case p.probe.state != probeListens:
		if !right {
			p.wrong("a write from the peer")
		}
	case right:
		p.tellProbed(framing.ProbeRight)
		p.endCheck(probePassed)
	default:
		p.tellProbed(framing.ProbeWrong)
		p.endCheck(probeFailed)
	}
}

func (p *peer) tellProbed(r framing.ProbeResult) {
	f := ctlFrame{t: framing.TypeProbed, n: framing.ProbedSize}
	r.Encode(f.payload[:])
	p.control(f)
}

// verdict takes in what the listening side says of what was sent from here.
func (p *peer) verdict(payload []byte) error {
	r, err := framing.DecodeProbed(payload)
	switch {
	case err != nil:
	case r == framing.ProbeRight:
		p.met(needProbed)
	default:
		p.wrong("at the peer, of what was sent from here")
	}
	return err
}
