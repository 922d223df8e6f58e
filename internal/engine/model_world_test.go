package engine

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/pool"
)

// options describes the world of a seed.
type options struct {
	sim       simfabric.Config
	cfg       Config
	hosts     int
	both      bool // every two hosts dial each other
	doorbells bool
	steps     int // before everything ends
	conns     int // opened in all
	alive     int // open at a time
	most      int // a direction of a conn carries about 1<<most bytes at most
	size      int // and a call moves up to 1<<size
	eager     int // largest frame, 0: what the provider takes
	rude      int // of 200 calls of shut end something at any moment; 0: no mischief either
	restless  int // of 1000 steps let time pass, or take a ring back
	zeroCopy  int // of 100 calls use Buffers
	tight     int // bytes of budget beyond what every host needs; 0: plenty
	faults    int // of 100 chances for something to go wrong are taken
	cruel     int // of 1000 steps have a process stop, end or join
	deadAfter time.Duration
	losses    float64 // share of messages that are silently lost
}

func (m *model) randomOptions() options {
	o := options{
		sim: m.randomSim(), hosts: pick(m, 2, 2, 2, 3, 3, 4), both: m.oneIn(3),
		steps: 1000 << m.rng.IntN(3), conns: 10 << m.rng.IntN(3), alive: 1 + m.rng.IntN(5),
		most: pick(m, 14, 16, 18),
		rude: pick(m, 0, 1, 2, 4, 20), restless: pick(m, 1, 1, 10, 40),
		zeroCopy: pick(m, 0, 20, 60), deadAfter: time.Hour,
	}
	// In most seeds nearly all calls are long enough for RDMA.
	sizes := pick(m, [2]int{8, 112}, [2]int{10, 112}, [2]int{12, 112}, [2]int{12, 300}, [2]int{15, 112}, [2]int{17, 112}, [2]int{17, 0})
	o.size, o.eager = sizes[0], sizes[1]
	if o.sim.SameHost {
		o.hosts, o.both, o.doorbells = 2, false, true
	}
	large := false
	switch {
	case m.oneIn(10): // conns come and go
		o.conns, o.most, o.steps, o.rude, o.alive = 300, 12, 4000, 10, 8
	case m.oneIn(30): // a long one
		o.steps, o.most = 6000, 21
	case m.oneIn(10): // Buffers longer than a staging chunk, and rings with room for several writes of them
		large = true
		o.size, o.most, o.zeroCopy, o.sim.MaxRMASize = 20, 23, 60, 0
	}
	if o.sim.MaxMsgSize > 0 && o.sim.MaxMsgSize < 4096 {
		o.most, o.size = min(o.most, 15), min(o.size, 12) // every byte costs many more steps
	}
	if o.hosts == 2 && !o.both && m.oneIn(4) {
		o.sim.RxDepth = pick(m, 4, 8)
	}
	if m.oneIn(4) {
		o.tight = 1 + m.rng.IntN(pick(m, 4<<10, 64<<10, 1<<20, 10<<20))
	}
	if m.oneIn(3) {
		o.faults = pick(m, 10, 100)
	}
	if m.oneIn(4) && !o.sim.PerPeer {
		m.makeCruel(&o)
	}
	if m.oneIn(10) {
		o.losses = pick(m, 1./100, 1./1000, 1./10_000)
	}
	o.cfg = Config{
		Window:    4 << 10 << m.rng.IntN(8),
		Ring:      4 << 10 << m.rng.IntN(1+m.rng.IntN(9)),
		PeerSlots: pick(m, 4, 4, 8, 16, 32, 64),
		DeadAfter: o.deadAfter,
	}
	o.cfg.MaxWindow = o.cfg.Window << m.rng.IntN(7)
	if large {
		o.cfg.Ring = 1 << 20
	}
	o.cfg.first = max(4<<10, o.cfg.Ring>>m.rng.IntN(6))
	return o
}

// randomSim returns a provider that mixes the properties of the real ones with others.
func (m *model) randomSim() simfabric.Config {
	var drawn []simfabric.Personality
	for _, preset := range simfabric.Presets() {
		drawn = append(drawn, slices.Repeat([]simfabric.Personality{preset.Personality}, preset.Weight)...)
	}
	p := pick(m, drawn...)
	p.Provider = "sim"
	p.InjectSize = pick(m, 0, 64, 256, 4096)
	p.TxDepth = pick(m, 1, 2, 8, 64, 64, 64)
	p.RxDepth = pick(m, 32, 64, 256, 256)
	p.SameHost = m.oneIn(4)
	if p.PerPeer = p.SameHost; p.SameHost {
		p.InjectSize = pick(m, 128, 256, 4096) // every frame is injected
	}
	p.NoWait = m.oneIn(4)
	p.EndpointMR = !p.LocalMR && m.oneIn(4)
	p.LateWrites = m.oneIn(2)
	p.Socket = pick(m, 0, 0, 2<<10, 16<<10, 256<<10)
	p.MaxMsgSize = pick[uint64](m, 0, 0, 0, 0, 0, 200, 512, 4096, 8192)
	p.MaxRMASize = pick[uint64](m, 0, 0, 0, 0, 4096, 8192, 100_000)
	c := simfabric.Config{
		Seed: m.seed, Personality: p, Delay: pick(m, 0, 1, 5, 10, 20, 40), Straggle: pick(m, 0, 0.05, 0.3),
		AgainRate: pick(m, 0, 0, 0, 0.1, 0.5), CompletionReorder: m.oneIn(2), Observe: m.observe,
	}
	if m.oneIn(10) { // bursts
		c.AgainRate, c.AgainBurst = 0.01, 300
	}
	return c
}

// host is one endpoint, as one process has it.
type host struct {
	m        *model
	name     string
	fab      fabric.Endpoint
	e        *Endpoint
	c        *core
	doorbell Doorbell
	budget   *pool.Budget
	next     *host  // the same process's next endpoint, which takes peers in place of this one
	hogged   int64  // bytes of the budget, by nobody in particular
	asleep   int    // step until which nobody polls
	thawAt   int    // step in which it is thawed, 0: it runs
	sent     uint64 // small data, when the lock was last given up
	order    *order // taken, and not handed in yet
	mapped   bool   // the order has been carried out
	dead     bool   // killed, or closed
	down     bool   // and shut down
	choresAt time.Time
	reaped   [reapMax]fabric.Completion
}

// pair is two peers. Side 0 dials.
type pair struct {
	m       *model
	id      int
	hosts   [2]*host
	peers   [2]*peer
	opening map[uint32]*modelConn // every conn by its number
	mayFail bool                  // something was done that may end it
	lost    [2]bool               // the engine has told a side's owner that it is lost
	lostAt  [2]time.Time          // when it was
	gone    [2]int                // how often it was told of the last conn's end
	checked bool                  // the path check is over, and both sides know
	tellAt  [2]int                // step in which the outside tells a side of the other's failure
}

func (m *model) build() {
	m.net = simfabric.New(m.opt.sim)
	for range m.opt.hosts {
		m.newHost()
	}
	for i, a := range m.hosts {
		for _, b := range m.hosts[i+1:] {
			m.connect(a, b)
			if m.opt.both {
				m.connect(b, a)
			}
		}
	}
	for _, h := range m.hosts {
		if m.opt.tight > 0 {
			h.hog(1 << 40) // all but what opt.tight leaves
		}
	}
	m.net.Lose(m.opt.losses)
}

func (m *model) newHost() *host {
	fe, err := m.net.Open("sim", netip.Addr{})
	m.check(err == nil, "opening an endpoint: %v", err)
	h := &host{m: m, fab: fe, name: string(fe.Name()), budget: pool.NewBudget(128 << 20)}
	cfg := m.opt.cfg
	cfg.Budget = h.budget
	h.c, err = newCore(fe, cfg)
	if !m.check(err == nil, "making a core: %v", err) {
		panic(err)
	}
	h.c.clock = func() time.Time { return m.now }
	h.c.metAt = m.now
	h.e = endpointOf(h.c)
	h.e.pause = h.pause
	m.check(h.e.poller.Acquire(), "somebody else polls")
	h.doorbell = Doorbell{Own: new(atomic.Uint32), Peer: new(atomic.Uint32)}
	h.e.poller.SetDoorbell(&h.doorbell)
	m.hosts = append(m.hosts, h)
	return h
}

// connect makes a and b peers, as a handshake does. It returns nil if one of them has no room.
func (m *model) connect(a, b *host) *pair {
	p := &pair{m: m, id: len(m.pairs), hosts: [2]*host{a, b}, opening: map[uint32]*modelConn{}}
	for side, h := range p.hosts {
		cfg := PeerConfig{Lost: func(err error, _ int) { m.lost(p, side, err) }, Gone: func() { p.gone[side]++ }}
		if h.c.attr.SameHost {
			open, forCheck := opens(h.budget), opens(pool.NewBudget(0))
			cfg.Memory = func(n pool.SharedName) (*pool.Slab, error) {
				switch {
				case !p.checked: // a pair for which this fails is none
					return forCheck(n)
				case m.oneIn(8):
					return nil, errInjected
				}
				return open(n)
			}
		}
		if side == 1 {
			cfg.Accept = p.accept
			cfg.Unproven = m.oneIn(2)
		}
		var err error
		locked(h.e, func() { p.peers[side], err = h.e.newPeer([16]byte{byte(p.id), byte(side)}, cfg) })
		if err != nil {
			full := errors.Is(err, ErrFull) && len(h.c.order) > 0 // other pairs have taken the room
			m.check(errors.Is(err, ErrMemory) || full || h.dead || len(m.pairs) > m.opt.hosts, "making a peer: %v", err)
			if side == 1 {
				p.mayFail = true
				p.fail(0, err)
			}
			return nil
		}
		m.lookAtDead(h)
	}
	spills := [2][]byte{make([]byte, SpillSize), make([]byte, SpillSize)}
	for side, h := range p.hosts {
		me, o := p.peers[side], p.peers[1-side]
		addr, err := h.fab.Insert(o.c.fab.Name())
		locked(h.e, func() {
			if me.err != nil { // it has failed since
				return
			}
			if err != nil { // the handshake gives both up
				m.check(errors.Is(err, errInjected), "inserting an address: %v", err)
				p.mayFail = true
				me.doom(err)
				return
			}
			eager := o.c.eager
			if m.opt.eager > 0 {
				eager = min(eager, m.opt.eager)
			}
			err = me.attach(&framing.Attach{Peer: o.id, Token: o.token, Slots: uint32(o.c.slots), Eager: uint32(eager), Rule: uint32(o.c.rule)}, addr)
			m.check(err == nil, "attaching: %v", err)
			if m.opt.doorbells && m.opt.hosts == 2 && !m.opt.both {
				me.doorbell.Own = h.doorbell.Own
			}
			if h.c.attr.SameHost {
				me.spill = Spill{spills[side], spills[1-side]}
			}
		})
	}
	m.pairs = append(m.pairs, p)
	m.note("connect", nil, p.id, 0)
	p.checkPath()
	locked(p.hosts[1].e, func() { p.peers[1].cfg.Unproven = false })
	return p
}

// poll does what Poller.Poll does, or the same with fewer completions.
func (m *model) poll(h *host) int {
	if h.down || h.frozen() {
		return 0
	}
	n := pick(m, 1, 1, 4, reapMax)
	_, n, err := h.fab.Exchange(nil, h.reaped[:n])
	if err == nil && n == 0 && !h.c.stuck() {
		return 0
	}
	h.e.enter()
	h.c.retry()
	h.c.dispatch(h.reaped[:n])
	if err != nil {
		m.check(h.dead, "polling: %v", err)
		h.c.breakdown(err)
	}
	h.e.leave()
	if n > 0 {
		m.happened()
		m.note("poll", nil, slices.Index(m.hosts, h), n)
	}
	return n
}

// pause is Endpoint.pause. It first does what leave does for the endpoint's timer.
func (h *host) pause(w *waiter) {
	sent := h.c.stats.SmallSent
	h.m.check(sent-h.sent <= lockedCopy, "%v: %d bytes were copied under the lock", h, sent-h.sent)
	h.sent = sent
	if w == nil && h.choresAt.IsZero() && h.c.busy() {
		h.choresAt = h.m.now.Add(choreTime)
	}
	h.m.pause(w)
}

// heartbeat delivers to h a heartbeat of each peer whose process runs, as a control connection does.
func (m *model) heartbeat(h *host) {
	m.note("heartbeat", nil, slices.Index(m.hosts, h), 0)
	for p, side := range m.pairsOf(h) {
		q := p.peers[side]
		if q == nil || !q.linked || !h.runs() || !p.hosts[1-side].runs() {
			continue
		}
		loses := false
		locked(h.e, func() {
			q.tally.told.Store(p.peers[1-side].tally.sent.Load())
			loses = q.beat()
		})
		if !loses {
			continue
		}
		for m.poll(h) > 0 {
		}
		locked(h.e, func() {
			if err := q.loss(); err != nil {
				q.doom(err)
			}
		})
	}
}

// doChores does what the endpoint's timer does.
func (m *model) doChores() {
	for _, h := range m.hosts {
		if h.down || h.frozen() || h.choresAt.IsZero() || m.now.Before(h.choresAt) {
			continue
		}
		h.choresAt = time.Time{}
		locked(h.e, h.c.chores)
	}
	m.closeOld()
}

// supply goes one step on with what the endpoint's goroutine does without the lock.
func (m *model) supply(h *host) bool {
	switch {
	case h.down || h.frozen():
		return false
	case h.order == nil:
		h.order = h.c.nextOrder()
		return h.order != nil
	case !h.mapped:
		h.mapped = true
		h.order.carryOut()
	default:
		o := h.order
		h.order, h.mapped = nil, false
		locked(h.e, func() { h.c.supplied(o) })
	}
	m.happened()
	m.note("supply", nil, slices.Index(m.hosts, h), 0)
	return true
}

// hog takes up to n bytes of the host's budget, but leaves opt.tight bytes.
func (h *host) hog(n int64) {
	s := h.budget.Stats()
	n = min(n, s.Limit-s.Used-int64(h.m.opt.tight))
	if n > 0 && h.budget.Reserve(n) == nil {
		h.hogged += n
	}
}

func (h *host) unhog() {
	h.budget.Release(h.hogged)
	h.hogged = 0
}

func (h *host) String() string { return fmt.Sprintf("%s dead %v", h.name, h.dead) }
