package engine

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/pool"
)

// look checks what must hold between any two steps: every call that waits has a reason to.
func (m *model) look() {
	for _, t := range m.tasks {
		if t.w == nil || t.w.Signalled() {
			continue
		}
		e := t.e
		switch t.what {
		case "read":
			m.check(e.s.rd.waiting && e.s.segs.empty() && e.conn.readError() == nil, "%v: nobody wakes the reader", e)
		case "write":
			s := e.s
			m.check(s.wr.waiting && e.conn.writeError() == nil && (s.writer == writerBlocked || s.itsOwn(s.lacks(e.conn.left)) || e.conn.left == 0 && s.leaving > 0),
				"%v: nobody wakes the writer (lacks %d)", e, s.lacks(e.conn.left))
		case "close":
			over := e.s.settled() || e.conn.wdl.passed
			if e.conn.linger == 0 {
				over = e.s.hasLeft()
			}
			m.check(e.s.wr.waiting && !over, "%v: nobody wakes Close", e)
		case "closeWrite":
			m.check(e.s.wr.waiting && !e.s.hasLeft(), "%v: nobody wakes CloseWrite", e)
		}
	}
	for _, c := range m.conns {
		for _, e := range c.ends {
			m.lookAtEnd(e)
		}
	}
	for _, h := range m.hosts {
		blocked, awake := 0, 0
		for _, p := range h.c.order {
			blocked += p.blocked.len()
			awake += p.awake
			m.check(p.blocked.len() == 0 || !(*p.blocked.first()).wr.waiting || p.inStageLine || p.staged > 0 || p.awake > 0 || (*p.blocked.first()).lacks((*p.blocked.first()).conn.left) != WaitsStage,
				"%v: nobody serves the writers of peer %d", h, p.id)
		}
		m.check(blocked == h.c.blocked && awake <= h.c.awake, "%v: %d blocked of %d, %d awake of %d", h, h.c.blocked, blocked, h.c.awake, awake)
		m.lookAtMemory(h)
		m.lookAtSlots(h)
		m.lookAtRings(h)
		m.check(h.c.flying >= 0 && h.c.flying <= h.c.attr.TxDepth, "%v: %d operations in a queue of %d", h, h.c.flying, h.c.attr.TxDepth)
	}
}

// lookAtSlots checks that each peer has its quota of receive slots, and that what it has not taken of it is there.
func (m *model) lookAtSlots(h *host) {
	if h.down || h.c.err != nil {
		return
	}
	for _, p := range h.c.order {
		due := 0
		for _, owner := range h.c.owners {
			if owner == p {
				due++
			}
		}
		for _, s := range p.list {
			due += len(s.held)
		}
		has := int(p.granted - p.seen)
		m.check(has+due == h.c.slots && p.known() >= 0 && has >= p.known(), "%v: peer %d has %d slots and knows of %d, %d are to be posted, of %d",
			h, p.id, has, p.known(), due, h.c.slots)
	}
	taken, sends, ops, deadSends, deadStage := 0, 0, h.c.most*h.c.ownOps, 0, 0
	for p, side := range m.pairsOf(h) {
		q := p.peers[side]
		if q != nil && q.quota {
			taken++
			sends += q.owedSends()
			ops += q.owedOps() - h.c.ownOps
		}
		if q != nil && q.reaped {
			deadSends += q.frames
			deadStage += q.staged
		}
	}
	m.check(deadSends == h.c.deadSends && deadStage == h.c.deadStage, "%v: dead peers hold %d send slots and %d staging chunks, as is thought %d and %d",
		h, deadSends, deadStage, h.c.deadSends, h.c.deadStage)
	m.check(taken == h.c.quotasTaken() && taken <= h.c.most, "%v: %d peers have quotas, as is thought %d, of %d", h, taken, h.c.quotasTaken(), h.c.most)
	m.check(sends == h.c.owedSends && sends <= h.c.tx.Free(), "%v: %d send slots are owed, as is thought %d, of %d", h, sends, h.c.owedSends, h.c.tx.Free())
	m.check(ops == h.c.owedOps && ops <= h.c.queueLeft(), "%v: %d operations are owed, as is thought %d, of %d", h, ops, h.c.owedOps, h.c.queueLeft())
}

// lookAtMemory checks that all that is mapped is paid for, reassembly rings by the windows of streams that are alive.
func (m *model) lookAtMemory(h *host) {
	b := h.budget.Stats()
	m.check(b.Mapped <= b.Used-h.hogged && b.Used <= b.Limit, "%v: %d bytes are mapped, of %+v, and hogged %d", h, b.Mapped, b, h.hogged)
	parts, bytes := map[*heap]int{}, map[*peer]int64{}
	for _, p := range slices.AppendSeq(slices.Clone(h.c.order), maps.Keys(h.c.lost)) {
		for _, s := range p.list {
			m.lookAtWindow(s)
			parts[s.heap] += s.parts
			bytes[p] += int64(s.parts) * s.heap.bytes()
		}
		m.check(p.windows == bytes[p], "%v: the windows of peer %d take %d bytes, not %d", h, p.id, bytes[p], p.windows)
	}
	for _, heap := range h.c.heaps {
		used := heap.mapped - len(heap.free)
		m.check(used <= heap.live && heap.live <= heap.paid && heap.mapped <= heap.paid, "%v: more is mapped than promised: %+v", h, heap)
		m.check(heap.live == parts[heap], "%v: %d parts of windows of %d bytes, not %d", h, parts[heap], heap.size, heap.live)
	}
}

// lookAtWindow checks that there is memory for all small data that the peer may have sent.
func (m *model) lookAtWindow(s *stream) {
	held := s.promised - s.smallRead
	m.check(s.smallIn <= s.promised && s.advertisedWindow <= s.promised, "stream %d: %d bytes came and %d were told of %d", s.id, s.smallIn, s.advertisedWindow, s.promised)
	m.check(s.parts >= s.partsFor(held) && s.parts >= s.rings.len(), "stream %d: %d parts for %d bytes and %d rings", s.id, s.parts, held, s.rings.len())
	m.check(held <= s.most(), "stream %d: a window of %d bytes", s.id, held)
}

// lookAtRings checks that rings which can be asked for are listed, and streams which wait for one are counted.
func (m *model) lookAtRings(h *host) {
	used, claims := 0, 0
	for _, p := range h.c.order {
		claims += p.claims.Len()
		for _, s := range p.list {
			if s.inLease != nil && !s.checks && s.nextLease == nil && s.inLease.state == leaseGranted {
				used++
			}
			m.check(s.oldLease == nil || s.nextLease == nil && s.inLease != nil, "%v: stream %d has three rings", h, s.id)
			m.check(s.nextLease == nil || len(s.nextLease.Ring.Bytes) > len(s.inLease.Ring.Bytes), "%v: stream %d: a ring does not grow", h, s.id)
		}
	}
	r := &h.c.rings
	m.check(h.c.err != nil || used == r.used.Len() && claims == r.claims, "%v: %d rings in use, %d wanted, as is thought %d and %d", h, used, claims, r.used.Len(), r.claims)
}

// lookAtEnd checks one end of a conn. Above all, a ring that is being read belongs to nobody else.
func (m *model) lookAtEnd(e *modelEnd) {
	if e.s == nil {
		return
	}
	m.shrank = m.shrank || !e.s.gone() && e.s.parts < e.parts
	e.parts = e.s.parts
	m.check(e.readErr == nil || e.closed || e.s.copying || e.s.segs.empty(), "%v: there is something to read after %v", e, e.readErr)
	if e.s.err != nil {
		if !e.cut {
			e.cut, e.cutAt = true, e.s.rcvNxt
		}
		m.check(e.s.rcvNxt == e.cutAt, "%v: bytes are taken in after %v", e, e.s.err)
	}
	if l := e.s.outLease; l != nil && e.s.grant == grantReturning {
		if e.revoked != l {
			e.revoked, e.revokedAt = l, e.s.largeOut
		}
		// What was being copied when the peer was lost does not count as written.
		undone := e.s.p.err != nil && e.s.largeOut < e.revokedAt
		m.check(e.s.largeOut == e.revokedAt || undone, "%v: it goes on writing to a ring that was revoked", e)
		e.revokedAt = e.s.largeOut
	}
	if !e.s.copying && len(e.kept) == 0 || e.h.down {
		return
	}
	if e.s.inLease != nil {
		for _, l := range []*inLease{e.s.oldLease, e.s.inLease} {
			m.check(l == nil || l.state != leaseDropped, "%v: a ring was freed that is being read", e)
		}
		for _, k := range e.kept {
			m.check(k.b.stream != e.s || k.b.ring >= e.s.inLease.base || e.s.oldLease != nil, "%v: a ring is gone of which the user holds a piece", e)
		}
		return
	}
	m.check(!e.s.copying, "%v: a ring is gone that is being read", e)
	for _, k := range e.kept {
		m.check(k.b.stream != e.s, "%v: a ring is gone of which the user holds a piece", e)
	}
}

// lookAtRest checks what must hold when nothing is under way: all that was sent has arrived, all
// credits are back, and calls that wait do so for the other side's user.
func (m *model) lookAtRest() {
	for _, p := range m.pairs {
		for side, me := range p.peers {
			if o := p.peers[1-side]; me.err == nil && o.err == nil && !p.hosts[0].frozen() && !p.hosts[1].frozen() {
				m.lookAtPeer(p, me, o)
			}
		}
	}
	for _, c := range m.conns {
		for _, e := range c.ends {
			if e.conn != nil && e.other.conn != nil && !e.down() && !e.other.down() && !e.h.frozen() && !e.other.h.frozen() {
				m.lookAtDirection(e, e.other)
			}
		}
	}
	for _, t := range m.tasks {
		if (t.what == "close" || t.what == "closeWrite" || t.what == "open") && !t.e.h.frozen() {
			m.failf("%v: %s waits for nothing", t.e, t.what)
		}
	}
	for _, h := range m.hosts {
		m.check(h.c.awake == 0 || h.frozen(), "%v: %d writers were woken and are not back", h, h.c.awake)
	}
}

func (m *model) lookAtPeer(p *pair, me, o *peer) {
	m.check(me.used == o.seen && me.credit == o.advertised, "pair %d: %d slots used and %d granted, as the other side sees it %d and %d",
		p.id, me.used, me.credit, o.seen, o.advertised)
	m.check(!o.creditDue(), "pair %d: the peer should know of its slots", p.id)
	m.check(len(me.out) == me.head && me.prepaid.len()+me.ctl.len()+me.pending.len()+me.dirty.len() == 0, "pair %d: frames wait for nothing", p.id)
	m.check(me.tally.sent.Load() == o.tally.came, "pair %d: %d messages were sent, and %d have come", p.id, me.tally.sent.Load(), o.tally.came)
	leases, mapped := 0, 0
	for _, slab := range me.mapped {
		leases += slab.leases
	}
	for _, s := range me.list {
		if s.outLease != nil && s.outLease.mapped != nil {
			mapped++
		}
	}
	m.check(leases == mapped, "pair %d: %d leases lie in what is mapped, and %d are held", p.id, leases, mapped)
}

// lookAtDirection checks what e sends to o.
func (m *model) lookAtDirection(e, o *modelEnd) {
	sent := e.s.sndNxt
	m.check(!e.s.hasPending() && e.s.writing == 0, "%v: frames wait for nothing", e)
	m.check(len(o.s.held) == 0, "%v: frames are held without a gap", o)
	if !o.discarding() && !e.aborted && e.s.err == nil {
		m.check(o.s.rcvNxt == sent, "%v: %d bytes sent, and %d arrived", e, sent, o.s.rcvNxt)
	}
	if e.s.outLease != nil {
		m.check(e.s.grant == grantHeld && e.s.offer == nil, "%v: a ring that was revoked or replaced is not given back", e)
	}
	if l := o.s.inLease; l != nil && !o.closed {
		m.check(l.state != leaseRevoking, "%v: a ring that was revoked does not come back", o)
		m.check(o.s.recv != recvEOF || !o.s.segs.empty() || o.s.copying || len(o.s.lent) > 0, "%v: a ring is kept for a conn that has ended", o)
	}
	m.check(m.opt.tight > 0 || o.s.claim != claimOpen || o.s.inLease != nil || o.discarding(), "%v: it waits for a ring, and there is memory", o)
	unread := !o.s.segs.empty() || o.s.copying || len(o.s.lent) > 0
	m.check(o.closed || o.s.oldLease == nil || unread, "%v: a ring is kept of which all was read", o)
	m.check(o.closed || o.s.nextLease == nil, "%v: a second ring waits for nothing", o)
	if e.writer != nil {
		full := o.s.inLease != nil || o.s.advertisedWindow+o.s.first()/2 > o.s.smallRead+o.s.most()
		m.check(m.opt.tight > 0 || full || o.s.recv != recvOpen || e.s.lacks(e.conn.left) != WaitsWindow, "%v: the writer waits for a window that could grow", e)
		m.check(e.s.lacks(e.conn.left) != WaitsRing || e.s.outLease.full, "%v: the writer waits for its ring, and has not said so", e)
		m.check(unread && !o.discarding(), "%v: the writer waits, and all is read", e)
		m.check(e.s.lacks(e.conn.left) != WaitsNothing, "%v: the writer waits, and could go on", e)
	}
	if o.reader != nil {
		m.check(!e.finished && !e.aborted, "%v: the reader waits, and there is something", o)
	}
}

// finish checks that a world in which everything has ended has kept nothing.
func (m *model) finish() {
	m.net.Lose(0)
	for _, h := range m.hosts {
		h.unhog()
	}
	m.hasten()
	m.tellLosses()
	m.settle()
	for range 6 { // idle leases come back, the memory of dead peers is given back
		m.tick(2 * choreTime)
		m.doChores()
		m.settle()
	}
	for _, h := range m.hosts {
		m.emptied(h)
	}
	for _, p := range m.pairs {
		for side, peer := range p.peers {
			m.check(len(peer.streams) == 0 && len(peer.list) == 0, "pair %d keeps streams", p.id)
			m.check((p.gone[side] == 1) == (peer.err != nil), "pair %d: Gone was called %d times", p.id, p.gone[side])
		}
	}
	m.lookAtNetwork()
	for _, p := range m.pairs {
		p.mayFail = true
	}
	for _, h := range m.hosts {
		locked(h.e, func() { h.c.breakdown(ErrEndpointClosed) })
		h.shutdown()
		b := h.budget.Stats()
		m.check(b.Used == 0 && b.Mapped == 0, "%v: %d bytes of the budget do not come back, %d are mapped", h, b.Used, b.Mapped)
		m.check(b.Foreign == 0, "%v: %d bytes of others' are mapped", h, b.Foreign)
		m.check(errors.Is(h.fab.Close(), simfabric.ErrClosed), "%v: the fabric endpoint was not closed", h)
	}
	m.check(m.net.Stats().Regions == 0, "registrations are left")
}

// emptied checks that an endpoint without conns holds only what it began with.
func (m *model) emptied(h *host) {
	c := h.c
	if h.down {
		return
	}
	dead := 0 // operations that will never complete
	buffers := map[*Buffer]bool{}
	for _, t := range c.ops {
		if t.peer != nil && t.peer.err != nil {
			dead++
			buffers[t.buf] = true
		}
	}
	delete(buffers, nil)
	m.check(c.flying == dead, "%v: %d operations in flight, %d of them dead", h, c.flying, dead)
	m.check(c.lingering == 0 && c.blocked == 0 && c.awake == 0 && c.lent == len(buffers) && c.copying == 0 && c.stats.Conns == 0,
		"%v: lingering %d blocked %d awake %d lent %d copying %d streams %d", h, c.lingering, c.blocked, c.awake, c.lent, c.copying, c.stats.Conns)
	m.check(c.leases.out() == 0, "%v: leases are out", h)
	m.check(h.dead || !c.busy(), "%v: something is left to do", h)
	if dead == 0 {
		m.check(c.tx.Free() == c.tx.Len() && c.stage.Free() == c.stage.Len(), "%v: %d of %d send slots, %d of %d staging chunks are free",
			h, c.tx.Free(), c.tx.Len(), c.stage.Free(), c.stage.Len())
	}
	for _, heap := range c.heaps {
		m.check(heap.live == 0 && (c.err != nil || heap.paid+heap.mapped == 0), "%v: windows are kept: %+v", h, heap)
	}
	// Where all processes are dead, nobody carries out what they have asked for.
	m.check(c.err != nil || !slices.ContainsFunc(m.hosts, (*host).runs) || len(c.waste)+len(c.leftover)+c.needs.len()+c.mapping == 0, "%v: %d slabs are not unmapped, %d calls map", h, len(c.waste)+len(c.leftover), c.mapping)
	m.check(len(buffers) > 0 || c.lend.Stats() == pool.ArenaStats{}, "%v: memory of Buffers is kept: %+v", h, c.lend.Stats())
	for _, p := range c.order {
		m.check(p.landing.Stats().Slabs == 0, "%v: landing memory is kept", h)
	}
}

func (m *model) lookAtNetwork() {
	failures := slices.ContainsFunc(m.pairs, func(p *pair) bool { return p.mayFail })
	s := m.net.Stats()
	m.check(s.BadLocal == 0 && s.Truncated == 0 && s.CQOverruns == 0 && s.PeerUnmapped == 0 && s.Misuse == "", "%+v", s)
	m.check(failures || s.BadRemote == 0, "%+v", s)
	// A receive that fails is missing until it has been posted again.
	m.check(failures || s.Failed > 0 || s.SendsWithoutReceive == 0, "%+v", s)
	for _, h := range m.hosts {
		s := &h.c.stats
		m.check(s.Violations == 0, "%v: a peer broke the protocol", h)
		m.check(failures || s.FramesDropped == 0, "%v: frames were dropped", h)
		// If completions are reaped in any order, the frame that gives a ring back
		// can come before the completion data of a write that has long landed.
		m.check(failures || m.opt.sim.CompletionReorder || s.WritesStray == 0, "%v: completion data for rings that were given back", h)
	}
}

// eventLog holds the events that happened last, and a digest of all.
type eventLog struct {
	last   [64]event
	n      int
	digest uint64
}

type event struct {
	step int
	what string
	e    *modelEnd
	a, b int
}

func (m *model) note(what string, e *modelEnd, a, b int) {
	l := &m.log
	l.last[l.n%len(l.last)] = event{m.step, what, e, a, b}
	l.n++
	serial := -1
	if e != nil {
		serial = 2*e.c.serial + e.side
	}
	for _, x := range []int{m.step, len(what), serial, a, b} {
		l.digest = (l.digest ^ uint64(x)) * 0x100000001b3
	}
}

func (l *eventLog) String() string {
	var out strings.Builder
	for i := max(0, l.n-len(l.last)); i < l.n; i++ {
		ev := &l.last[i%len(l.last)]
		fmt.Fprintf(&out, "%7d %s", ev.step, ev.what)
		if ev.e != nil {
			fmt.Fprintf(&out, " [%v]", ev.e)
		}
		fmt.Fprintf(&out, " %d %d\n", ev.a, ev.b)
	}
	return out.String()
}

func (e *modelEnd) String() string {
	id := uint32(0)
	if e.s != nil {
		id = e.s.id
	}
	return fmt.Sprintf("conn %d.%d pair %d stream %d", e.c.serial, e.side, e.c.pair.id, id)
}

func (m *model) dump() string {
	var out strings.Builder
	fmt.Fprintf(&out, "%+v\n", m.opt)
	for _, p := range m.pairs {
		for side, h := range p.hosts {
			fmt.Fprintf(&out, "pair %d side %d on %v: %s", p.id, side, h, dumpPeer(h.c, p.peers[side]))
		}
	}
	for _, c := range m.conns {
		for _, e := range c.ends {
			fmt.Fprintf(&out, "%v: sent %d/%d got %d finished %v at %d read %v closed %v aborted %v kept %d; under way: write %v read %v close %v\n",
				e, e.sent(), e.toSend, e.got, e.finished, e.final, e.readErr, e.closed, e.aborted, len(e.kept), e.writer != nil, e.reader != nil, e.closer != nil)
		}
	}
	return out.String() + m.log.String()
}

func dumpPeer(c *core, p *peer) string {
	out := fmt.Sprintf("flying %d/%d tx free %d/%d stage %d/%d recvs %d blocked %d; peer granted %d told %d seen %d avail %d out %d prepaid %d ctl %d pending %d dirty %d err %v\n%+v\n",
		c.flying, c.attr.TxDepth, c.tx.Free(), c.tx.Len(), c.stage.Free(), c.stage.Len(), len(c.recvs), c.blocked,
		p.granted, p.advertised, p.seen, p.avail(), len(p.out)-p.head, p.prepaid.len(), p.ctl.len(), p.pending.len(), p.dirty.len(), p.err, c.stats)
	for _, s := range p.streams {
		out += fmt.Sprintf("  stream %d out: next %d small %d/%d large %d/%d pend %+v grant %d writing %d state %d, closed %v, peer closed %v, waiting %v\n",
			s.id, s.sndNxt, s.smallOut, s.smallMax, s.largeOut, s.largeMax, s.pend, s.grant, s.writing, s.send, s.closed(), s.peerClosed, s.wr.waiting)
		out += fmt.Sprintf("  stream %d in: next %d small %d/%d large %d/%d segs %v held %d lease %v claim %d state %d, ends at %d, to be answered %v, err %v waiting %v\n",
			s.id, s.rcvNxt, s.smallRead, s.smallIn, s.largeRel, s.largeIn, !s.segs.empty(), len(s.held), s.inLease != nil, s.claim, s.recv, s.finPos, s.finAckDue, s.err, s.rd.waiting)
	}
	return out
}
