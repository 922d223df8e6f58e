package engine

import (
	"errors"
	"slices"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
)

// makeCruel has processes stop, end and join again and again, with sockets, and writes that go on when nobody wants them.
func (m *model) makeCruel(o *options) {
	o.cruel, o.faults, o.restless = pick(m, 5, 20, 50), 50, 10
	o.hosts, o.doorbells, o.alive, o.conns = max(o.hosts, 3), false, max(o.alive, 5), max(o.conns, 40)
	o.size, o.eager, o.most = max(o.size, 15), 112, max(o.most, 16)
	o.sim.LateWrites, o.sim.Socket = true, pick(m, 2<<10, 16<<10, 64<<10)
	o.sim.Delay, o.sim.Straggle = pick(m, 0, 5, 20, 40), pick(m, 0, 0.3)
}

func (m *model) cruelty(h *host) {
	if m.oneIn(2) { // in the middle of something
		h = slices.MaxFunc(m.hosts, func(a, b *host) int { return a.c.flying - b.c.flying })
	}
	switch r := m.rng.IntN(100); {
	case h.dead || r < 20:
		m.join()
	case r < 60:
		m.freeze(h)
	case r < 80:
		m.reconnect(h)
	case r < 95:
		m.hangUp(pick(m, m.pairs...))
	default:
		m.kill(h)
	}
}

// freeze stops a host's process for a while. The others may give it up meanwhile, which it learns afterwards.
func (m *model) freeze(h *host) {
	if h.thawAt > 0 {
		return
	}
	m.note("freeze", nil, slices.Index(m.hosts, h), 0)
	h.thawAt = m.step + 1 + m.rng.IntN(1<<(4+m.rng.IntN(8)))
	m.net.Freeze(h.fab)
	switch {
	case m.oneIn(3):
		return
	case m.oneIn(2): // for good, as far as the others can tell
		h.thawAt += 1 << 20
	}
	for p, side := range m.pairsOf(h) {
		p.mayFail = true
		m.tellLater(p, 1-side)
	}
}

// frozen reports that the host's process is stopped: none of its functions may be called.
func (h *host) frozen() bool { return h.thawAt > 0 }

// runs reports that the host's process is running.
func (h *host) runs() bool { return !h.frozen() && !h.dead }

// unsettled reports that something must still happen between the two, and nobody knows when. A host that was given up
// while frozen is not waited for, if the queue is so long that the host cannot hold all of it.
func (p *pair) unsettled() bool {
	for side, h := range p.hosts {
		if h.frozen() {
			other := p.hosts[1-side]
			return !p.lost[1-side] && !other.frozen() || h.c.attr.TxDepth < 16
		}
	}
	return p.failing()
}

// thaw lets the hosts go on that are due, or all of them.
func (m *model) thaw(all bool) {
	for i, h := range m.hosts {
		if h.frozen() && (all || m.step >= h.thawAt) {
			m.note("thaw", nil, i, 0)
			m.happened()
			h.thawAt = 0
			if !h.dead {
				m.net.Thaw(h.fab)
			}
		}
	}
}

// join adds a host later than the others, which meets one of them.
func (m *model) join() {
	alone := m.opt.doorbells && m.opt.hosts == 2 && !m.opt.both // an endpoint with a doorbell has one peer
	if alone || m.opt.sim.PerPeer || len(m.hosts) >= m.opt.hosts+8 {
		return
	}
	other := m.takes(pick(m, m.hosts...))
	if other == nil {
		return
	}
	m.note("join", nil, len(m.hosts), 0)
	if h := m.newHost(); m.oneIn(2) {
		m.connect(h, other)
	} else {
		m.connect(other, h)
	}
}

// failCall has a call on the host's endpoint fail, once or several times in a row, sooner or later.
func (m *model) failCall(h *host) {
	calls := []simfabric.Call{simfabric.CallPoll, simfabric.CallRemove, simfabric.CallInsert, simfabric.CallCloseRegion, simfabric.CallPost(fabric.Recv)}
	if m.opt.tight > 0 { // memory may be short
		calls = append(calls, simfabric.CallRegisterLocal, simfabric.CallRegisterRemote)
	}
	f := simfabric.Fault{Call: pick(m, calls...), Skip: m.rng.IntN(1 << m.rng.IntN(8)), Err: errInjected}
	if m.oneIn(2) {
		kinds := []fabric.Kind{fabric.Send, fabric.Inject, fabric.Recv, fabric.Write, fabric.WriteData}
		if f.Call = simfabric.CallPost(pick(m, kinds...)); m.oneIn(2) {
			f.Err, f.More = simfabric.ErrAgain, m.rng.IntN(1<<m.rng.IntN(9))
		}
	}
	m.note("fail call", nil, int(f.Call), f.Skip)
	m.net.FailCall(h.fab, f)
}

// callFailed notes that a call on a host's endpoint has failed, and what may end because of that.
func (m *model) callFailed(h *host, ev simfabric.Event) {
	switch ev.Call {
	case simfabric.CallPost(fabric.Recv), simfabric.CallPoll: // nothing works without these
		h.dead = true
		for p := range m.pairsOf(h) {
			p.mayFail = true
		}
	case simfabric.CallCloseRegion: // a peer that writes there may go on
		m.unclosed[ev.Key] = true
	}
}

// lookAtDead: a host that takes a peer has no more dead ones than others, or than half of its quotas if the dead are quiet.
func (m *model) lookAtDead(h *host) {
	alive, loud := len(h.c.order), 0
	for p, side := range m.pairsOf(h) {
		if q := p.peers[side]; q != nil && q.reaped && q.quota && q.maySend() {
			loud++
		}
	}
	m.check(loud <= alive && h.c.dead <= max(alive, h.c.most/2), "%v: a new peer beside %d dead ones, %d of which may send", h, h.c.dead, loud)
}

// takes returns the host on which h's process takes a new peer: its next endpoint, if the one that it has takes none.
// It is nil if the process is dead or stopped, or if there may be no further endpoint.
func (m *model) takes(h *host) *host {
	for h.next != nil {
		h = h.next
	}
	switch {
	case h.dead || h.frozen():
		return nil
	case h.e.Takes():
		return h
	case len(m.hosts) == maxHosts:
		return nil
	}
	m.note("next endpoint", nil, slices.Index(m.hosts, h), 0)
	h.next = m.newHost()
	return h.next
}

const maxHosts = 16

// closeOld closes the endpoints that take no more peers and have lost all they had.
func (m *model) closeOld() {
	for _, h := range m.hosts {
		if h.next != nil && !h.dead && !h.frozen() && len(h.c.order) == 0 && h.order == nil {
			m.closeHost(h)
		}
	}
}

// checkPath begins the pair's path check. Conns do not wait for it here: it runs beside other traffic.
func (p *pair) checkPath() { locked(p.hosts[0].e, p.peers[0].startCheck) }

// settlePaths does what a handshake does when a path check ends: it tells the listening side, or gives the peer up.
func (m *model) settlePaths() {
	for _, p := range m.pairs {
		dials, listens := p.peers[0], p.hosts[1]
		switch {
		case p.checked || dials.check < checkPassed || listens.frozen() || listens.down:
		case dials.check == checkFailed:
			p.checked = true
			m.check(p.mayFail || dials.err != nil || m.opt.tight > 0 && errors.Is(dials.checkErr, ErrMemory),
				"pair %d: the path check fails: %v", p.id, dials.checkErr)
			if !p.mayFail {
				p.mayFail = true
				p.fail(0, dials.checkErr)
			}
		default:
			p.checked = true
			m.check(p.peers[1].check == checkPassed, "pair %d: only one side has passed the path check", p.id)
			dials.endCheck()
			locked(listens.e, p.peers[1].endCheck)
		}
	}
}

// checking reports whether the path check, or the close of its stream, goes on.
func (p *pair) checking() bool {
	return !p.mayFail && (!p.checked || p.peers[0].checkStream != nil || p.peers[1].checkStream != nil)
}
