package engine

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/engine/progress"
	"github.com/seed202c38ff/fabricnet/internal/fabric"
)

// Endpoint is one open fabric endpoint with the peers and conns that use it.
// All methods may be called concurrently.
type Endpoint struct {
	mu   sync.Mutex // guards core and everything reached from it
	core *core

	poller *progress.Poller
	reaped [reapMax]fabric.Completion // belongs to the owner of the queue
	fab    fabric.Endpoint
	attr   fabric.Attr

	chores  *time.Timer
	choring atomic.Bool // chores, the timer, is set

	last   atomic.Pointer[Stats]
	final  *Stats // guarded by mu, nil until the endpoint is closed
	closed sync.Once
	later  tasks // what remains to be done of calls whose context has ended

	endings map[*ending]struct{} // under way; guarded by mu, as is ticksAt
	ticksAt time.Time            // when the timer for them was set, zero if there is none

	supplying bool          // the goroutine of supply is running; guarded by mu
	mapped    chan struct{} // see awaitMapping
	mapWaits  int           // guarded by mu: how many goroutines are in it
	newcomers sync.Mutex    // one newPeer or prepare at a time; taken before mu

	// pause is nil except in the model test, which runs many calls on one thread. There
	// it stands in for the other goroutines: it is called whenever a call has given up the
	// lock, and returns once w, if there is one, is signalled.
	pause func(w *waiter)
}

// reapMax is the most completions that are reaped at a time.
const reapMax = 32

// NewEndpoint takes over an open fabric endpoint.
func NewEndpoint(fab fabric.Endpoint, cfg Config) (*Endpoint, error) {
	c, err := newCore(fab, cfg)
	if err != nil {
		return nil, err
	}
	e := endpointOf(c)
	e.chores = time.AfterFunc(time.Hour, e.doChores)
	e.poller.Start()
	return e, nil
}

// endpointOf returns an Endpoint that nobody polls yet.
func endpointOf(c *core) *Endpoint {
	e := &Endpoint{core: c, fab: c.fab, attr: c.attr, endings: make(map[*ending]struct{}), mapped: make(chan struct{}, 1)}
	cfg := progress.Config{Queue: (*queue)(e), Waiter: c.fab.Waiter(), Spin: c.cfg.Spin, Ticks: c.attr.Ticks}
	if c.attr.PerPeer { // calls of other providers do not hang
		cfg.Rescuer, _ = c.fab.(fabric.Rescuer)
	}
	e.poller = progress.New(cfg)
	c.owner = e
	return e
}

// queue is an Endpoint as its Poller sees it.
type queue Endpoint

// Poll implements progress.Queue.
func (q *queue) Poll(retry bool) (found progress.Found) {
	e := (*Endpoint)(q)
	_, n, err := e.fab.Exchange(nil, e.reaped[:])
	if n == 0 && err == nil && !retry {
		return found
	}
	e.enter()
	e.core.retry()
	if n > 0 {
		e.core.dispatch(e.reaped[:n])
		e.core.stats.Reaped += uint64(n)
		e.core.stats.Polls = e.poller.Polls()
		e.core.stats.pollsFull++
		found.Moved = e.core.stats.moved()
	}
	if err != nil {
		e.core.breakdown(err)
	}
	found.Completions, found.More = n, n == len(e.reaped)
	e.leave()
	return found
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
	// Before the peer is rung: it looks at our flag once it has done what was posted.
	kick := e.poller.Note(progress.Report{
		Refused: c.stuck(), Flying: c.flying > 0, Work: c.stats.Posted + c.stats.Reaped,
	})
	chores := !e.choring.Load() && c.busy()
	var ring func(leader bool)
	var led bool
	if p := c.rang; p != nil { // everything is posted
		c.rang = nil
		if asleep, leads := p.doorbell.Disarm(); asleep {
			ring, led = p.doorbell.Ring, leads
			c.stats.DoorbellsSent++
		}
	}
	if c.hasOrders() && !e.supplying && e.pause == nil {
		e.supplying = true
		go e.supply()
	}
	e.mu.Unlock()
	if ring != nil {
		ring(led)
	}
	if e.pause != nil {
		e.pause(nil)
		return
	}
	if kick {
		e.poller.Kick()
	}
	if chores && e.choring.CompareAndSwap(false, true) {
		e.chores.Reset(choreTime)
	}
}

// doChores runs the chores that have become due.
func (e *Endpoint) doChores() {
	e.choring.Store(false)
	if e.poller.Closing() {
		return
	}
	e.enter()
	e.core.chores()
	e.leave() // which sets the timer, if there is more to do
}

// Prepare maps what the next peer needs, before it comes.
func (e *Endpoint) Prepare() error {
	e.newcomers.Lock()
	defer e.newcomers.Unlock()
	e.enter()
	defer e.leave()
	if err := e.core.fullError(); err != nil {
		return err
	}
	return e.prepare()
}

// Peer is one process at the other end of an Endpoint.
type Peer struct {
	e     *Endpoint
	p     *peer
	local framing.Attach
	join  sync.Once // once it has come up, or will not
	left  sync.Once
	drain sync.Once
}

// NewPeer reserves a place for a peer.
func (e *Endpoint) NewPeer(cfg PeerConfig) (*Peer, error) {
	var token [16]byte
	if _, err := rand.Read(token[:]); err != nil {
		return nil, err
	}
	name := e.fab.Name()
	e.newcomers.Lock()
	defer e.newcomers.Unlock()
	e.enter()
	defer e.leave()
	p, err := e.newPeer(token, cfg)
	if err != nil {
		return nil, err
	}
	e.poller.Join()
	return &Peer{e: e, p: p, local: framing.Attach{
		Provider: e.attr.Provider, Name: name, Peer: p.id, Token: token,
		Slots: uint32(e.core.slots), Eager: uint32(e.core.eager), Rule: uint32(e.core.rule),
	}}, nil
}

var errRecvs = errors.New("fabric takes no receives")

// Local is what the peer must be told of this side.
func (p *Peer) Local() framing.Attach { return p.local }

// Connect takes in what the peer says of itself.
func (p *Peer) Connect(ctx context.Context, remote framing.Attach) error {
	if err := p.refuseOurs(&remote); err != nil {
		return err
	}
	addr, err := p.e.insert(ctx, remote.Name)
	if err != nil {
		return fmt.Errorf("provider %s: peer's address: %w", p.e.attr.Provider, err)
	}
	p.e.enter()
	if err = p.p.err; err == nil {
		err = p.p.attach(&remote, addr)
	} else if !p.e.attr.PerPeer { // see core.unlink
		_ = p.e.fab.Remove(addr)
	}
	begins := err == nil && p.p.cfg.Unproven // the peer begins, with the path check
	p.e.leave()
	if begins {
		p.e.poller.Expect()
	}
	return err
}

// insert inserts a peer's name into the address vector. Since that may block, the lock is not
// held, and insert waits no longer than ctx. An address that comes too late is removed again.
func (e *Endpoint) insert(ctx context.Context, name []byte) (fabric.Addr, error) {
	type result struct {
		addr fabric.Addr
		err  error
	}
	done := make(chan result)
	started := e.later.start(func() {
		addr, err := e.fab.Insert(name)
		select {
		case done <- result{addr, err}:
		case <-ctx.Done():
			if err == nil && !e.attr.PerPeer { // see core.unlink
				_ = e.fab.Remove(addr)
			}
		}
	})
	if !started {
		return 0, ErrEndpointClosed
	}
	select {
	case r := <-done:
		return r.addr, r.err
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}

// Checked reports, on the listening side, whether the peer's path check has brought here
// what was sent.
func (p *Peer) Checked() bool {
	p.e.mu.Lock()
	defer p.e.mu.Unlock()
	return p.p.check == checkPassed
}

// Attached says that both sides are up. doorbell wakes the peer where the provider
// has nothing to wait on. spill may be used until Lost is called, or until the peer is lost.
func (p *Peer) Attached(doorbell Doorbell, spill Spill) {
	p.e.enter()
	if p.p.err == nil {
		p.p.spill = spill
	}
	if doorbell.Own != nil {
		p.e.poller.SetDoorbell(&doorbell)
	}
	p.p.doorbell = doorbell
	p.p.endCheck()
	p.e.leave()
	p.join.Do(p.e.poller.Joined)
	p.e.poller.Stir() // conns come now
}

// drainTime is how long Lost, Quit and EndIdle go on taking in what arrives, at most.
const drainTime = 5 * time.Millisecond

// Lost ends the peer after its control connection has ended. What has
// arrived before that is taken in first, so that nothing is lost of a peer
// that closed its conns and exited.
func (p *Peer) Lost(err error) { p.end(err, false) }

// Left notes that nothing more comes from the peer: its process has ended, or it has said goodbye, or has noticed
// that it was given up. Its quota is free for another one once it is lost and its operations have completed. Before
// Lost, that keeps an endpoint of use whose last peer says goodbye.
func (p *Peer) Left() {
	defer p.e.poller.Watch()()
	p.e.enter()
	p.p.left()
	p.e.leave()
}

// MaySend reports whether more may come of the peer once it is lost: it has not left, nor does its provider forget it.
func (p *Peer) MaySend() bool {
	defer p.e.poller.Watch()()
	p.e.enter()
	defer p.e.leave()
	return p.p.maySend()
}

// over is Lost for a peer that has left.
func (p *Peer) over(err error) {
	p.Left()
	p.Lost(err)
}

// Quit ends the peer before the peer is told, since the endpoint is about to be closed. Nothing
// more is posted to it, but what it sends until it is told still lands. If its writes found
// their memory withdrawn, libfabric's tcp and net providers would drop the connection, and the
// peer's next write would open another one, whose socket the net provider never closes if the
// endpoint is closed first (xnet_pep_close).
func (p *Peer) Quit() { p.end(ErrEndpointClosed, true) }

func (p *Peer) end(err error, keepLanding bool) {
	e := p.e
	defer e.poller.Watch()()
	p.drain.Do(func() { e.poller.Drain(drainTime) })
	e.enter()
	p.p.keepLanding = keepLanding
	p.p.salvage()
	p.p.doom(err)
	e.leave()
	p.join.Do(e.poller.Joined)
	p.left.Do(e.poller.Left)
	if e.attr.PerPeer { // nothing more will come, and polling for it might hang
		e.poller.Retire()
	}
}

// Heard reports whether anything has come from the peer over the fabric.
func (p *Peer) Heard() bool { return p.p.answers.Load() }

// EndIdle is Left and Lost for a peer that has no conns, since it sends next to nothing. It takes in what has arrived
// first. If the peer then has conns, or was lost before, EndIdle does nothing else and reports false.
func (p *Peer) EndIdle(err error) bool {
	e := p.e
	defer e.poller.Watch()()
	p.e.poller.Drain(drainTime)
	e.enter()
	ends := p.p.conns.Load() == 0 && p.p.err == nil
	if ends {
		p.p.left()
		p.p.doom(err)
	}
	e.leave()
	if ends {
		p.Lost(err)
	}
	return ends
}

// Idle reports how many conns the peer has, how many of them are closed on this side and wait for
// the peer's answer, and since when it has had none.
func (p *Peer) Idle() (conns, closed int, since time.Time) {
	closed = int(p.p.closed.Load()) // before conns: a closed conn that goes meanwhile must not look like an open one
	return int(p.p.conns.Load()), closed, time.Unix(0, p.p.idle.Load())
}

// Open opens a conn to a listener of the peer. It returns once the listener's
// backlog has taken it, or ctx has ended.
func (p *Peer) Open(ctx context.Context, listener uint32) (*Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	e := p.e
	var rd atomic.Pointer[waiter]
	done := make(chan struct{})
	defer close(done)
	defer context.AfterFunc(ctx, func() {
		if w := rd.Load(); w != nil {
			e.interrupt(w)
		}
		e.poller.RescueUntil(done)
	})()
	if !e.enterBefore(ctx) {
		return nil, ctx.Err()
	}
	s, err := p.p.open(listener)
	if err != nil {
		e.leave()
		return nil, err
	}
	rd.Store(&s.rd)
	for s.unanswered() {
		s.rd.prepare()
		if ctx.Err() != nil { // only after prepare: interrupt does not take the lock
			break
		}
		e.leave()
		e.wait(&s.rd, "rdmanet.Open")
		if !e.enterBefore(ctx) {
			giveUp := func() {
				e.lock()
				defer e.leave()
				s.abort()
			}
			if !e.later.start(giveUp) {
				go giveUp() // the endpoint is closed, and need not wait for it
			}
			return nil, ctx.Err()
		}
	}
	defer e.leave()
	if s.port != 0 && (s.err == nil || s.p.err == nil) { // taken; if it was reset since, its user will find out
		return s.conn, nil
	}
	err = ctx.Err()
	if !s.unanswered() {
		err = cmp.Or(s.err, s.p.lost)
	}
	s.close()
	return nil, err
}

// Close fails all peers, then ends the endpoint and frees its memory.
func (e *Endpoint) Close() (err error) {
	e.closed.Do(func() {
		defer e.poller.Watch()()
		e.enter()
		e.core.breakdown(ErrEndpointClosed)
		e.core.flush() // calls must not wait for what is being mapped
		for e.core.mapping > 0 {
			e.awaitMapping()
		}
		e.leave()
		e.poller.Close()
		e.later.end()
		e.chores.Stop()
		e.mu.Lock()
		defer e.mu.Unlock()
		err = e.core.shutdown()
		s := e.snapshot()
		e.final = &s
	})
	return err
}
