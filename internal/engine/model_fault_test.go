package engine

import (
	"errors"
	"iter"
	"slices"
	"time"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
)

var (
	errOutside  = errors.New("the control connection has ended")
	errInjected = errors.New("injected by the model")
)

// fault lets something go wrong, in the seeds that are meant for it.
func (m *model) fault() {
	h := pick(m, m.hosts...)
	if m.opt.tight > 0 && m.oneIn(2) {
		if m.oneIn(2) {
			h.unhog()
		} else {
			h.hog(int64(m.rng.IntN(16 << 20)))
		}
		return
	}
	if m.winding || h.dead || m.rng.IntN(100) >= m.opt.faults {
		return
	}
	switch r := m.rng.IntN(160); {
	case r >= 140:
		m.doomAmid()
	case r >= 120:
		m.failCall(h)
	case r >= 100:
		m.cruelty(h)
	case r < 40:
		kind := pick(m, fabric.Send, fabric.Write, fabric.WriteData)
		if h.c.attr.SameHost && m.oneIn(3) {
			kind = fabric.Inject
		}
		m.note("failing", nil, int(kind), 0)
		m.net.Fail(h.fab, kind, errInjected)
	case r < 50:
		m.note("failing", nil, int(fabric.Recv), 0)
		m.net.Fail(h.fab, fabric.Recv, errInjected)
	case r < 55:
		m.faultOfNone(h)
	case r < 75:
		m.hangUp(pick(m, m.pairs...))
	case r < 82:
		m.kill(h)
	case r < 88:
		m.closeHost(h)
	default:
		m.reconnect(h)
	}
}

// doomAmid dooms a peer amid a copy without the lock, amid its path check, or while a conn of it is being closed.
func (m *model) doomAmid() {
	what := pick(m, "copy", "check", "close")
	amid := func(p *pair, side int) bool {
		q, h := p.peers[side], p.hosts[side]
		switch {
		case q == nil || q.err != nil || h.down || h.dead || h.frozen():
			return false
		case what == "copy":
			return h.c.copying > 0
		case what == "check":
			return slices.ContainsFunc(q.list, func(s *stream) bool { return s.checks && !s.closed() })
		}
		return slices.ContainsFunc(q.list, func(s *stream) bool { return s.closed() && !s.gone() })
	}
	for _, p := range m.pairs {
		for side := range p.peers {
			if amid(p, side) {
				m.note("doom amid "+what, nil, p.id, side)
				p.fail(side, errInjected)
				return
			}
		}
	}
}

// unrest makes rings change hands, by time without traffic, or by another conn that wants the memory.
func (m *model) unrest() {
	p := pick(m, m.pairs...)
	side := m.rng.IntN(2)
	list := p.peers[side].list
	if m.oneIn(3) || len(list) == 0 || p.hosts[side].frozen() {
		m.tick(time.Duration(m.rng.IntN(4)) * choreTime)
		return
	}
	s := pick(m, list...)
	h := p.hosts[side]
	m.note("revoke", nil, p.id, int(s.id))
	locked(h.e, s.revoke)
}

// faultOfNone puts an error of no operation into a queue. An endpoint with a single peer takes it for that peer's.
func (m *model) faultOfNone(h *host) {
	m.note("fault of none", nil, 0, 0)
	if h.c.attr.PerPeer {
		m.pairs[0].mayFail = true
	}
	m.net.Fail(h.fab, 0, errInjected)
}

// hangUp ends a pair's control connection.
func (m *model) hangUp(p *pair) {
	m.note("hang up", nil, p.id, 0)
	p.fail(m.rng.IntN(2), errOutside)
}

// fail ends a side's peer, as the session does when the control connection ends.
func (p *pair) fail(side int, err error) {
	p.mayFail = true
	h := p.hosts[side]
	switch {
	case h.down:
		return
	case h.frozen(): // it is told when it goes on
		p.m.tellLater(p, side)
		return
	}
	locked(h.e, func() { p.peers[side].doom(err) })
}

// lost is PeerConfig.Lost. The control connection is then closed, which the other side learns later.
func (m *model) lost(p *pair, side int, err error) {
	m.note("lost", nil, p.id, side)
	m.happened()
	m.check(p.mayFail || p.hosts[side].dead, "pair %d has failed: %v", p.id, err)
	p.mayFail = true
	m.check(!p.lost[side], "Lost is called twice")
	p.lost[side], p.lostAt[side] = true, m.now
	m.tellLater(p, 1-side)
}

// failing reports that the pair is failing, and not both sides know it yet.
func (p *pair) failing() bool { return p.mayFail && (!p.lost[0] || !p.lost[1]) }

func (m *model) tellLater(p *pair, side int) {
	if p.tellAt[side] == 0 {
		p.tellAt[side] = m.step + 1 + m.rng.IntN(1<<m.rng.IntN(11))
	}
}

// tellLosses tells the sides that are due to hear of a loss.
func (m *model) tellLosses() {
	for _, p := range m.pairs {
		for side, at := range p.tellAt {
			if at > 0 && at <= m.step && !p.hosts[side].frozen() {
				p.tellAt[side] = 1 << 60
				p.fail(side, errOutside)
			}
		}
	}
}

// kill ends a host's process, as far as others can tell.
func (m *model) kill(h *host) {
	how := pick(m, simfabric.DeathError, simfabric.DeathRefuse)
	if len(m.hosts) == 2 && m.oneIn(3) {
		// What never completes takes up the queue that other hosts need, even those that come later.
		how = simfabric.DeathSilent
	}
	m.note("kill", nil, slices.Index(m.hosts, h), int(how))
	h.dead, h.thawAt = true, 0
	m.net.Kill(h.fab, how)
	for p, side := range m.pairsOf(h) {
		p.mayFail = true
		m.tellLater(p, 1-side)
	}
}

// closeHost closes an endpoint in the middle of everything. What has been read or is about to be written stays valid.
func (m *model) closeHost(h *host) {
	if h.frozen() {
		return
	}
	m.note("close host", nil, slices.Index(m.hosts, h), 0)
	h.dead = true
	for p := range m.pairsOf(h) {
		p.mayFail = true
	}
	locked(h.e, func() { h.c.breakdown(ErrEndpointClosed) })
	if m.oneIn(2) && h.c.mapping == 0 { // else it would wait
		h.shutdown()
	}
}

// shutdown is the rest of Endpoint.Close.
func (h *host) shutdown() {
	if h.down {
		return
	}
	for h.order != nil {
		h.m.supply(h)
	}
	h.down = true
	h.m.net.FailCall(h.fab, simfabric.Fault{})
	h.e.mu.Lock()
	defer h.e.mu.Unlock()
	if err := h.c.shutdown(); err != nil {
		h.m.failf("closing %v: %v", h, err)
	}
}

// reconnect connects a host again with one that it was paired with, after both sides have lost that pair.
func (m *model) reconnect(h *host) {
	for p, side := range m.pairsOf(h) {
		if p.lost[0] && p.lost[1] && !h.c.attr.PerPeer && len(m.pairs) < 24 {
			if a, b := m.takes(h), m.takes(p.hosts[1-side]); a != nil && b != nil {
				m.connect(a, b)
				return
			}
		}
	}
}

// observe is called for everything that the network does.
func (m *model) observe(ev simfabric.Event) {
	from, to := m.hostNamed(ev.From), m.hostNamed(ev.To)
	if ev.Err == nil {
		switch ev.Place {
		case simfabric.Registered:
			m.placed(from, to, ev)
		case simfabric.Reused, simfabric.Unmapped:
			m.failf("a late write of %d bytes from %v to %v finds other memory than that which it was for (%d)", ev.Len, from, to, ev.Place)
		}
		return
	}
	m.callFailed(from, ev)
	for p, side := range m.pairsOf(from) {
		if to != nil && p.hosts[1-side] == to && p.peers[side].addr == ev.Addr {
			p.mayFail = true
		}
	}
}

func (m *model) hostNamed(name string) *host {
	if i := slices.IndexFunc(m.hosts, func(h *host) bool { return h.name == name }); i >= 0 {
		return m.hosts[i]
	}
	return nil
}

// pairsOf yields the pairs that a host belongs to, and its side of them.
func (m *model) pairsOf(h *host) iter.Seq2[*pair, int] {
	return func(yield func(*pair, int) bool) {
		for _, p := range m.pairs {
			if side := slices.Index(p.hosts[:], h); side >= 0 && !yield(p, side) {
				return
			}
		}
	}
}

// placed checks that bytes which are about to be put into a host's memory belong there: into a ring that
// is leased to a conn with the writer, to a place without unread data.
func (m *model) placed(from, to *host, ev simfabric.Event) {
	if m.unclosed[ev.Key] {
		return
	}
	for p, side := range m.pairsOf(to) {
		if p.hosts[1-side] != from || p.peers[side] == nil {
			continue
		}
		for _, s := range p.peers[side].list {
			for _, l := range []*inLease{s.inLease, s.nextLease} {
				if l != nil && l.Ring.Key == ev.Key && ev.Remote-l.Ring.Addr < uint64(len(l.Ring.Bytes)) {
					m.placedIn(s, l, ev)
					return
				}
			}
		}
	}
	m.failf("a write of %d bytes from %v to %v lands where nothing is leased to it", ev.Len, from, to)
}

func (m *model) placedIn(s *stream, l *inLease, ev simfabric.Event) {
	size, n := uint64(len(l.Ring.Bytes)), uint64(ev.Len)
	at := ev.Remote - l.Ring.Addr
	if l == s.nextLease { // nothing of it can have been read, so nothing is written twice
		m.check(at+n <= size, "stream %d: %d bytes land at %d of a ring of %d", s.id, n, at, size)
		return
	}
	first := framing.RingOffset(s.largeIn-l.base, size)
	ahead := (at + size - first) % size
	rel := max(s.largeRel, l.base)
	m.check(l.state != leaseReturned, "stream %d: a write lands in a ring that was given back", s.id)
	m.check(at+n <= size && ahead+n <= size-(s.largeIn-rel),
		"stream %d: %d bytes land at %d of a ring of %d, where %d unread ones end at %d", s.id, n, at, size, s.largeIn-rel, first)
}

// arrived is how many bytes of data have arrived, in all conns together.
func (m *model) arrived() (n uint64) {
	for _, h := range m.hosts {
		n += h.c.stats.SmallReceived + h.c.stats.RDMABytesReceived
	}
	for _, p := range m.pairs {
		for _, q := range p.peers {
			if q == nil {
				continue
			}
			for _, s := range q.list {
				if s.checks {
					n += s.rcvNxt
				}
			}
		}
	}
	return n
}

// settle lets everything that is under way come to rest, without a new call, and checks what must hold then.
func (m *model) settle() {
	had := uint64(0)
	for i, still := 0, 0; still < 2; i++ {
		if has := m.arrived(); has != had { // a large window in frames of 64 bytes, over a slow queue, takes millions of steps
			had, i = has, 0
		}
		if !m.check(i < 100_000, "the world does not come to rest") || m.failed() {
			return
		}
		m.tellLosses()
		if slices.ContainsFunc(m.pairs, (*pair).unsettled) || !slices.ContainsFunc(m.hosts, (*host).runs) {
			return // until both sides know, and run, that may take any time
		}
		m.now = m.now.Add(time.Microsecond)
		s := m.net.Stats()
		moved := m.resumeAny() || s.InFlight > s.Stuck
		for _, h := range m.hosts {
			moved = m.poll(h) > 0 || m.supply(h) || moved || !h.down && !h.frozen() && h.c.stuck()
			if n := len(h.c.recvs); n > 0 && !h.down && !h.frozen() { // chores post these
				locked(h.e, h.c.retry)
				moved = moved || len(h.c.recvs) < n || h.c.stuck()
			}
		}
		if still++; moved {
			still = 0
		}
	}
	m.note("settled", nil, 0, 0)
	m.lookAtRest()
}
