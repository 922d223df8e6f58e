package engine

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/fabric"
)

// Endpoint is one open fabric endpoint with the peers and conns that use it.
// All methods may be called concurrently.
type Endpoint struct {
	mu   sync.Mutex // guards core and everything reached from it
	core *core

	progress
	fab     fabric.Endpoint
	waiter  fabric.Waiter // nil: doorbells
	cfg     Config
	attr    fabric.Attr
	timer   *time.Timer // arms a queue that was left
	chores  *time.Timer
	evicts  *time.Timer // see doEvict
	parks   atomic.Uint64
	bells   atomic.Uint64
	last    atomic.Pointer[Stats]
	final   *Stats // guarded by mu, nil until the endpoint is closed
	closed  sync.Once
	inserts sync.WaitGroup // calls of fab.Insert, which nobody may wait for any more

	supplying bool       // the goroutine of supply is there; guarded by mu
	mapped    sync.Cond  // of mu: core.mapping has gone down
	newcomers sync.Mutex // one newPeer at a time; taken before mu

	rescuer fabric.Rescuer // nil: the provider's calls return
	retired sync.Once
	over    atomic.Bool // retired, or about to be

	// pause stands in for the other goroutines where the model test runs many calls
	// on one thread: it is called whenever a call has given up the lock, and returns
	// once w, if there is one, is signalled. It is nil otherwise.
	pause func(w *waiter)
}

// NewEndpoint takes over an open fabric endpoint.
func NewEndpoint(fab fabric.Endpoint, cfg Config) (*Endpoint, error) {
	c, err := newCore(fab, cfg)
	if err != nil {
		return nil, err
	}
	e := &Endpoint{
		core: c, fab: fab, waiter: fab.Waiter(), cfg: c.cfg, attr: c.attr,
		progress: progress{park: make(chan struct{}, 1), spun: c.cfg.Spin, done: make(chan struct{}), gone: make(chan struct{})},
	}
	if c.attr.PerPeer { // others' calls return
		e.rescuer, _ = fab.(fabric.Rescuer)
	}
	c.owner, e.mapped.L = e, &e.mu
	e.looks = e.look
	e.timer = time.AfterFunc(time.Hour, e.tick)
	e.chores = time.AfterFunc(time.Hour, e.doChores)
	e.evicts = time.AfterFunc(time.Hour, e.doEvict)
	go e.background()
	e.kick(pollEvery)
	return e, nil
}

// Attr is what the fabric endpoint offers.
func (e *Endpoint) Attr() fabric.Attr { return e.attr }

// enter and leave bracket every use of the core.
func (e *Endpoint) enter() {
	e.mu.Lock()
	e.core.at = time.Time{}
}

func (e *Endpoint) leave() {
	c := e.core
	c.flush()
	stuck := c.stuck()
	e.refused.Store(stuck)
	poll := c.flying > 0 && e.waiter == nil || stuck || e.slow.Load() && c.work() != e.work
	chores, crowded := c.busy(), len(c.probes.waiting) > 0
	if c.held != e.held.Load() {
		e.held.Store(c.held)
		if c.held {
			e.tellHeld()
		} else {
			e.bell.Load().Own.CompareAndSwap(bellHeld, bellAwake)
		}
	}
	var ring func()
	for _, p := range c.rang {
		p.rung = false
		// Everything is posted; the swap is the fence before the look at the
		// flag. Endpoints with doorbells have one peer.
		if p.bell.Peer.CompareAndSwap(bellAsleep, bellAwake) {
			ring = p.bell.Ring
			c.stats.DoorbellsRung++
		}
	}
	c.rang = c.rang[:0]
	if c.hasOrders() && !e.supplying && e.pause == nil {
		e.supplying = true
		go e.supply()
	}
	e.mu.Unlock()
	if ring != nil {
		ring()
	}
	if e.pause != nil {
		e.pause(nil)
		return
	}
	if poll && e.state.Load() != owned {
		e.kick(pollEvery)
	}
	if chores && e.choring.CompareAndSwap(false, true) {
		e.chores.Reset(choreTime)
	}
	if crowded && e.evicting.CompareAndSwap(false, true) {
		e.evicts.Reset(probeTurn)
	}
}

// Peer is one process at the other end of an Endpoint.
type Peer struct {
	e     *Endpoint
	p     *peer
	local framing.Attach
	join  sync.Once
}

// NewPeer reserves a place for a peer.
func (e *Endpoint) NewPeer(cfg PeerConfig) (*Peer, error) {
	var token [16]byte
	if _, err := rand.Read(token[:]); err != nil {
		return nil, err
	}
	name := e.fab.Name()
	if e.waiter != nil {
		e.waiter.Wake() // a sleeper looks often again while the two meet
	}
	e.newcomers.Lock()
	defer e.newcomers.Unlock()
	e.enter()
	defer e.leave()
	p, err := e.newPeer(token, cfg)
	if err != nil {
		return nil, err
	}
	// What is granted must be posted before the peer hears of it.
	for i := 0; len(e.core.recvs) > 0; i++ {
		if i == 1000 {
			e.core.fail(p, errRecvs)
			return nil, fmt.Errorf("provider %s: %w", e.attr.Provider, errRecvs)
		}
		e.leave()
		runtime.Gosched()
		e.enter()
		e.core.postRecvs()
	}
	e.joining.Add(1)
	e.quiet = 0
	e.kick(pollJoin)
	return &Peer{e: e, p: p, local: framing.Attach{
		Provider: e.attr.Provider, Name: name, Peer: p.id, Token: token,
		Slots: uint32(p.slots), Eager: uint32(e.core.eager),
	}}, nil
}

var errRecvs = errors.New("fabric takes no receives")

// Local is what the peer must know of this side.
func (p *Peer) Local() framing.Attach { return p.local }

// Connect takes in what the peer says of itself.
func (p *Peer) Connect(ctx context.Context, remote framing.Attach) error {
	addr, err := p.e.insert(ctx, remote.Name)
	if err != nil {
		return fmt.Errorf("provider %s: peer's address: %w", p.e.attr.Provider, err)
	}
	p.e.enter()
	defer p.e.leave()
	if p.p.err != nil {
		if !p.e.attr.PerPeer { // see core.fail
			_ = p.e.fab.Remove(addr)
		}
		return p.p.err
	}
	return p.p.attach(&remote, addr)
}

// insert inserts a peer's name, which may block: not under the lock, and for no longer
// than ctx. What comes too late is taken back.
func (e *Endpoint) insert(ctx context.Context, name []byte) (fabric.Addr, error) {
	type result struct {
		addr fabric.Addr
		err  error
	}
	done := make(chan result)
	e.inserts.Go(func() {
		addr, err := e.fab.Insert(name)
		select {
		case done <- result{addr, err}:
		case <-ctx.Done():
			if err == nil && !e.attr.PerPeer { // see core.fail
				_ = e.fab.Remove(addr)
			}
		}
	})
	select {
	case r := <-done:
		return r.addr, r.err
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}

// Check moves small and large data to the peer and back, as the dialing side, and
// waits until both sides have compared it: see probe.go. Its error wraps ErrContents if
// something else arrived than was sent, and that of ctx if nothing did.
func (p *Peer) Check(ctx context.Context) error {
	e := p.e
	stop := context.AfterFunc(ctx, func() { e.expire(p.p.pong.signal) })
	defer stop()
	e.enter()
	if p.p.err == nil {
		p.p.startCheck()
	}
	for !p.p.checked() && ctx.Err() == nil {
		p.p.pong.prepare()
		e.leave()
		e.wait(&p.p.pong, "rdmanet.Check")
		e.enter()
	}
	defer e.leave()
	switch {
	case p.p.probe.state == probePassed:
		return nil
	case p.p.probe.err != nil:
		return p.p.probe.err
	case p.p.err != nil:
		return p.p.err
	}
	return fmt.Errorf("provider %s: no answer over the fabric: %w", e.attr.Provider, context.Cause(ctx))
}

// Checked reports, on the listening side, that the peer's path check has brought here
// what was sent.
func (p *Peer) Checked() bool {
	p.e.mu.Lock()
	defer p.e.mu.Unlock()
	return p.p.probe.state == probePassed
}

// Attached says that both sides are up. bell wakes the peer where the provider
// has nothing to wait on.
func (p *Peer) Attached(bell Bell) {
	p.e.enter()
	if bell.Own != nil {
		p.e.bell.Store(&bell) // first: a write that is held back needs it
	}
	p.p.bell = bell
	p.e.quiet = 0 // conns come now
	p.e.leave()
	p.join.Do(func() { p.e.joining.Add(-1) })
	p.e.kick(tickAfter)
}

// Doorbell says that the peer has rung.
func (p *Peer) Doorbell() {
	p.e.bells.Add(1)
	p.e.attend()
}

// drainTime is how long Lost goes on taking in what has arrived, at most.
const drainTime = 5 * time.Millisecond

// Lost ends the peer after its rendezvous connection has ended. What has
// arrived before that is taken in first: a peer that closed its conns and
// exited has lost nothing.
func (p *Peer) Lost(err error) {
	e := p.e
	defer e.watch()()
	for start, empty := time.Now(), 0; empty < 3 && time.Since(start) < drainTime; {
		if !e.acquire() {
			runtime.Gosched() // the owner drains
			continue
		}
		if e.poll() == 0 {
			empty++
		} else {
			empty = 0
		}
		e.release()
	}
	e.enter()
	e.core.fail(p.p, err)
	e.leave()
	p.join.Do(func() { e.joining.Add(-1) })
	if e.attr.PerPeer { // nothing more will come, and a look for it might hang
		e.retire()
	}
}

// Idle reports how many conns the peer has and since when it has none.
func (p *Peer) Idle() (conns int, since time.Time) {
	return int(p.p.conns.Load()), time.Unix(0, p.p.idle.Load())
}

// Open opens a conn to a listener of the peer. It returns once the listener's
// backlog has taken it.
func (p *Peer) Open(ctx context.Context, listener uint32) (*Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	e := p.e
	e.rouse()
	defer e.watchFrom(func(f func()) func() bool { return context.AfterFunc(ctx, f) })()
	e.enterWatched()
	s, err := p.p.open(listener)
	if err != nil {
		e.leave()
		return nil, err
	}
	s.conn.dialed = true
	stop := context.AfterFunc(ctx, func() { e.expire(s.rd.signal) })
	defer stop()
	for s.opening && s.err == nil && ctx.Err() == nil {
		s.rd.prepare()
		e.leave()
		e.wait(&s.rd, "rdmanet.Open")
		e.enter()
	}
	defer e.leave()
	switch {
	case s.err != nil:
		err = s.err
		s.close()
		return nil, err
	case s.opening:
		s.close()
		return nil, ctx.Err()
	}
	return s.conn, nil
}

// Close fails all peers, then ends the endpoint and frees its memory.
func (e *Endpoint) Close() (err error) {
	e.closed.Do(func() {
		defer e.watch()()
		e.enter()
		e.core.breakdown(ErrEndpointClosed)
		for e.core.mapping > 0 {
			e.mapped.Wait()
		}
		e.leave()
		close(e.done)
		if e.waiter != nil {
			e.waiter.Wake()
		}
		<-e.gone
		e.inserts.Wait()
		e.retire()
		e.timer.Stop()
		e.chores.Stop()
		e.evicts.Stop()
		e.mu.Lock()
		defer e.mu.Unlock()
		err = e.core.shutdown()
		s := e.snapshot()
		e.final = &s
	})
	return err
}
