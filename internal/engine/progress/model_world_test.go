package progress

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// notice is how a queue tells of arrivals.
type notice int

const (
	byFD       notice = iota
	byDullFD          // tells nothing of the end of own operations
	byLossyFD         // does not tell of every arrival: heartbeats make up for it
	byDeafFD          // tells of nothing: Config.Ticks
	byDoorbell        // own operations have no end: all are injected
	byNothing         // polling
	notices
)

// beat is the time between two heartbeats.
const beat = 5 * time.Second

// kind describes the world of a seed.
type kind struct {
	notice notice
	calls  int
	rounds int
	spin   bool
	limit  int  // of spinners
	hangs  bool // a poll hangs, once, for a while
	dies   bool // it is closed in the middle
	beats  bool // heartbeats come
	strict bool // a poll that finds something undoes fi_trywait
	blind  bool // fi_trywait does not look at the queue: each arrival makes the fd readable, as net's in libfabric 1.17
}

// arrival is what the queue has for a call, or the end of an operation of our own.
type arrival struct {
	call *call
	own  bool
	at   time.Time
}

type model struct {
	sim
	kind
	p     *Poller
	tick  *alarm
	queue []arrival
	// What the endpoint's lock guards. locked is the lock.
	locked  bool
	flying  int
	refused int
	since   time.Time // when the fabric refused something that it has not been offered again yet
	work    uint64

	inPoll   bool
	polls    int
	hung     bool // a poll hangs
	fd       modelFD
	doorbell Doorbell
	bells    [2]modelBell // the leader's, and the watcher's
	calls    []*call
	live     int // calls that go on
	over     bool
	gone     bool     // the peer has gone
	due      int      // arrivals to come
	left     []string // tasks that are left at the end
}

// call is a goroutine that waits for something again and again.
type call struct {
	w       Waiter
	waiting bool
	waits   bool      // it is in Wait
	ended   time.Time // when its wait was signalled
}

func runModel(seed uint64) *model {
	m := &model{sim: sim{rng: rand.New(rand.NewPCG(seed, 1)), now: dawn}}
	m.kind = kind{
		notice: notice(m.rng.IntN(int(notices))), calls: 1 + m.rng.IntN(4), rounds: 1 + m.rng.IntN(12),
		spin: !m.oneIn(4), limit: m.rng.IntN(4), hangs: m.oneIn(4), dies: m.oneIn(3), strict: m.oneIn(2),
	}
	m.beats = m.notice == byLossyFD || m.oneIn(2)
	m.blind = m.notice == byFD && m.oneIn(2)
	cfg := Config{Queue: m, Spin: -1, Clock: m, Ticks: m.notice == byDeafFD}
	if m.spin {
		cfg.Spin = 20 * time.Microsecond
	}
	if m.notice <= byDeafFD {
		m.fd = modelFD{m: m, bell: modelBell{m: m}, watcher: modelBell{m: m}}
		cfg.Waiter = &m.fd
	}
	m.p = New(cfg)
	m.p.sched.model, m.p.least = m, 8
	m.p.spins = &spinners{limit: func() int { return m.limit }}
	m.p.spins.often.Store(m.oneIn(4))
	m.p.publish()
	m.p.Start()
	m.live++
	m.start("life", m.life)
	m.bells = [2]modelBell{{m: m}, {m: m}}
	m.run(dawn.Add(time.Hour))
	m.check(m.err != nil || m.over && m.live == 0, "the endpoint never ends")
	for _, t := range m.tasks {
		m.check(false, "a task never ends: %s", t.name)
		m.left = append(m.left, t.name)
		t.stop()
	}
	return m
}

// life is what happens to the endpoint.
func (m *model) life() {
	defer func() { m.live-- }()
	m.p.Join()
	if m.oneIn(2) {
		m.sleep(m.span())
		m.p.Expect()
	}
	m.sleep(m.span())
	if m.hasDoorbell() {
		m.doorbell = Doorbell{Own: new(atomic.Uint32), Peer: new(atomic.Uint32), Bell: &m.bells[0], Watcher: &m.bells[1]}
		m.p.SetDoorbell(&m.doorbell)
		m.bells[1].edge = true // for what was sent before there was a doorbell
	}
	m.p.Joined()
	m.p.Stir()
	if m.beats {
		m.start("heartbeats", func() {
			for !m.over && !m.gone {
				m.sleep(beat)
				m.p.Look()
			}
		})
	}
	m.crowds()
	m.live += m.kind.calls
	for range m.kind.calls {
		c := &call{w: NewWaiter()}
		m.calls = append(m.calls, c)
		m.start("call", func() { m.run1(c) })
	}
	if m.hangs {
		m.after(m.span(), func() { m.hung = true })
	}
	if m.dies {
		m.sleep(3 * m.span())
	} else {
		m.block(func() bool { return m.live == 1 && m.due == 0 && len(m.queue) == 0 && m.refused == 0 })
		m.block(func() bool { return !m.inPoll })
		m.hangs = false
		m.rest()
	}
	m.over = true
	m.enter()
	for _, c := range m.calls {
		m.signal(c)
	}
	m.leave()
	lost := m.oneIn(2) // the peer is lost while the endpoint is closed
	if lost {
		m.start("lost", func() {
			m.p.Retire()
			lost = false
		})
	}
	m.p.Close()
	m.check(m.p.now() == retired, "closed, but %v", m.p)
	m.check(m.tick.at.IsZero(), "closed, but the timer is set")
	m.check(m.p.leads.Load() == 0, "closed, but somebody may look at the flag")
	m.block(func() bool { return !lost })
}

// crowds has other queues be in use now and then, too many for anybody to poll.
func (m *model) crowds() {
	if m.oneIn(2) {
		return
	}
	for range m.rounds {
		m.after(m.span(), func() {
			for range m.rng.IntN(crowd * (m.limit + 2)) {
				m.p.spins.count(new(uint32))
			}
		})
	}
}

// rest checks that a queue with nothing to do is woken no more often than it must be.
func (m *model) rest() {
	const settled, watched = 2 * time.Second, 10 * time.Second
	m.sleep(settled) // and all that was learnt is forgotten
	polls := m.polls
	m.sleep(watched)
	most := 0
	switch {
	case m.notice < byDeafFD && m.beats:
		// Each heartbeat is looked at twice, and then less and less often; it may not be safe to
		// sleep at first.
		most = 12 * int(watched/beat)
	case m.notice == byDeafFD:
		most = 2*int(watched/lastLook) + 12*int(watched/beat) // since it may not be safe to sleep at first
	case m.notice == byNothing:
		most = int(watched/PollIdle) + 10
	}
	m.check(m.polls-polls <= most, "%d looks in %v at a queue that rests", m.polls-polls, watched)
	m.p.Left()
	m.gone = true
	if m.notice == byNothing {
		m.sleep(settled)
		polls = m.polls
		m.sleep(watched)
		m.check(m.polls == polls, "%d looks at a queue without peers", m.polls-polls)
	}
}

// run1 is what a call does.
func (m *model) run1(c *call) {
	defer func() { m.live-- }()
	for range m.rounds {
		if m.oneIn(2) {
			m.sleep(m.span())
		}
		m.enter()
		if m.over {
			m.leave()
			return
		}
		m.post()
		if m.oneIn(2) { // a Write, which does not wait
			m.leave()
			continue
		}
		c.waiting = true
		c.w.Prepare()
		m.expect(arrival{call: c})
		if m.oneIn(8) { // a deadline
			m.after(m.span(), func() {
				m.enter()
				m.signal(c)
				m.locked = false
			})
		}
		m.leave()
		c.waits = true
		m.p.Wait(&c.w, "model")
		c.waits = false
		m.check(c.w.Signalled(), "a wait ends, but nobody has signalled")
		if m.oneIn(4) {
			m.p.Settle(m.oneIn(2))
		}
	}
}

func (m *model) signal(c *call) {
	if c.waiting {
		c.waiting = false
		c.ended = m.now
		c.w.Signal()
	}
}

// post offers the fabric an operation, which it may refuse, or none.
func (m *model) post() {
	switch m.rng.IntN(4) {
	case 0:
		if m.refused++; m.refused == 1 {
			m.since = m.now
		}
	case 1:
		m.fly()
	}
}

// fly posts an operation. It is called with the lock held.
func (m *model) fly() {
	m.work++
	if !m.hasDoorbell() {
		m.flying++
		m.expect(arrival{own: true})
	}
}

// span returns how long something takes.
func (m *model) span() time.Duration {
	most := []time.Duration{0, time.Microsecond, 20 * time.Microsecond, 300 * time.Microsecond, 3 * time.Millisecond, time.Second}
	return time.Duration(m.rng.Int64N(int64(most[m.rng.IntN(len(most))]) + 1))
}

func (m *model) expect(a arrival) {
	m.due++
	m.after(m.span(), func() { m.arrive(a) })
}

// arrive puts something into the queue, and tells the poller of it.
func (m *model) arrive(a arrival) {
	m.due--
	a.at = m.now
	m.queue = append(m.queue, a)
	m.step()
	switch {
	case m.notice == byFD, m.notice == byDullFD && !a.own, m.notice == byLossyFD && m.oneIn(2):
		m.fd.arrived()
	case m.hasDoorbell() && m.doorbell.Own != nil:
		other := Doorbell{Own: m.doorbell.Peer, Peer: m.doorbell.Own}
		asleep, led := other.Disarm()
		m.step()
		switch {
		case led:
			m.bells[0].edge = true
		case asleep:
			m.bells[1].edge = true
		}
	}
}

func (m *model) enter() {
	m.block(func() bool {
		free := !m.locked
		m.locked = m.locked || free
		return free
	})
}

func (m *model) leave() {
	m.step() // what was posted may be done by now
	kick := m.p.Note(Report{Refused: m.refused > 0, Flying: m.flying > 0, Work: m.work})
	m.locked = false
	m.step()
	if kick {
		m.p.Kick()
	}
}

// Poll implements Queue.
func (m *model) Poll(retry bool) Found {
	m.check(!m.inPoll, "two goroutines poll")
	m.check(m.p.now() == owned, "polled, but %v", m.p)
	m.check(!m.p.Closing() || !m.over || m.p.now() != retired, "polled after the end")
	m.inPoll = true
	m.polls++
	m.step()
	if m.hung && m.hangs {
		m.hang()
	}
	most := 1 + m.rng.IntN(4)
	n := min(len(m.queue), most)
	found := append([]arrival(nil), m.queue[:n]...)
	m.queue = m.queue[n:]
	if n > 0 && m.strict {
		m.fd.ready = false // what comes next makes it readable only after another fi_trywait
	}
	m.step()
	if n > 0 || retry {
		m.enter()
		for m.refused > 0 && m.oneIn(2) {
			m.refused--
			m.since = m.now
			m.fly()
		}
		for _, a := range found {
			m.work++
			switch {
			case a.own:
				m.flying--
			default:
				m.signal(a.call)
			}
		}
		m.leave()
	}
	m.inPoll = false
	return Found{Completions: n, More: n == most, Moved: m.work}
}

// hang is a call that does not return for a long time. Meanwhile nobody may run except to make
// calls of its own, and to find out.
func (m *model) hang() {
	steps := m.steps
	m.sleep(5 * time.Second)
	m.hung = false
	m.check(m.steps-steps < 3000, "%d steps while a call hangs", m.steps-steps)
	m.since = m.now
	for i := range m.queue {
		m.queue[i].at = m.now // it could not be reaped
	}
	for _, c := range m.calls {
		c.ended = m.now // it may have been its goroutine that hung
	}
}

// inspect looks for what is always wrong.
func (m *model) inspect() {
	m.check(m.p.spins.n.Load() <= int32(m.limit) && m.p.spins.n.Load() >= 0, "%d goroutines spin", m.p.spins.n.Load())
	m.check(m.steps < 1_000_000, "it never ends")
	if m.inPoll && m.hung && m.hangs || m.over {
		return
	}
	m.check(m.refused == 0 || m.now.Sub(m.since) < 50*time.Millisecond, "what was refused is not offered again")
	for _, c := range m.calls {
		m.check(!c.waits || c.waiting || m.now.Sub(c.ended) < 15*time.Millisecond, "a call that was signalled does not return")
	}
	for _, a := range m.queue {
		if late := m.now.Sub(a.at); late > m.patience(a) && !m.gone {
			m.check(false, "an arrival (own %v) is not looked at for %v", a.own, late)
		}
	}
}

// patience is how long an arrival may have to wait.
func (m *model) patience(a arrival) time.Duration {
	const slack = 15 * time.Millisecond
	switch {
	case m.notice == byDeafFD, m.notice == byDullFD && a.own, m.notice == byLossyFD && a.own:
		return lastLook + slack
	case m.notice == byLossyFD && !a.own:
		return 3*beat + slack
	case m.notice == byNothing && !a.own: // it is polled often for our own operations only
		return PollIdle + slack
	}
	return slack
}

// hasDoorbell reports whether the peer rings.
func (m *model) hasDoorbell() bool { return m.notice == byDoorbell }

func (m *model) dump() string {
	p := m.p
	s := fmt.Sprintf("%v queued %d words %d leads %d led %v; %d arrived, %d to come, flying %d refused %d, fd %v watched %v\n",
		p, p.queued.Load(), p.words.Load(), p.leads.Load(), p.leader.Load() != nil, len(m.queue), m.due, m.flying, m.refused, m.fd.ready, m.fd.watched)
	if m.doorbell.Own != nil {
		s += fmt.Sprintf("flag %d, bells %+v\n", m.doorbell.Own.Load(), m.bells)
	}
	for _, t := range m.left {
		s += t + "\n"
	}
	return s
}
