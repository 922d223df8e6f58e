package rdmanet

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/bootstrap"
	"github.com/seed202c38ff/fabricnet/internal/engine"
	"github.com/seed202c38ff/fabricnet/internal/shmdir"
)

// link is one peer process that was met in a handshake: a session, and a peer on an endpoint.
// The dialling side opens conns over it.
//
// It goes through these states, and ends in the same way whatever ends it:
//
//	state        moved there by               what is there
//	negotiating  Prepare                      a peer; the connection is the handshake's
//	up           Attached                     the session, too; conns may be opened
//	ended        end: by Ended (the session   nothing is sent any more; conns have failed,
//	             is over), Abort, discard,    but what they received can still be read
//	             endIdle, quit; or the
//	             engine: see lost
//	finished     gone: the last conn is       nothing: the endpoint is given back, memory
//	             closed; or end's caller      is unmapped
type link struct {
	t             *Transport
	ep            *endpoint
	peer          *engine.Peer
	listener      *Listener // nil on the dialling side
	newcomer      *newcomer // in the listener's admission
	used          *atomic.Bool
	path          pathKey
	local, remote *Addr
	refused       []Refusal // see ConnInfo; set before any conn is opened
	version       uint8     // see ConnInfo, as for the next two
	features      uint64
	tls           *tls.ConnectionState // must not be changed
	logger        *slog.Logger
	abandoned     sync.Once // the logger was told that the endpoint was abandoned

	session  atomic.Pointer[bootstrap.Session]
	settled  chan struct{} // closed when the negotiation has ended
	finished sync.Once

	// The dialling side's bookkeeping, guarded by links.mu.
	key    linkKey
	reuse  bool   // may carry more than one conn
	dialed bool   // the negotiation has succeeded
	dead   bool   // not to be used for further conns
	users  int    // dials that are about to open a conn
	opens  uint64 // how many of these there have been
}

var (
	_ bootstrap.Binding = (*link)(nil)
	_ bootstrap.Handler = (*link)(nil)
)

// The handshake calls Local, Refused, Connect, Check, Admit, Attached and Abort.

func (l *link) Local() framing.Attach { return l.peer.Local() }

func (l *link) Refused(reasons []string) { l.refused = refusals(reasons) }

func (l *link) Connect(ctx context.Context, remote framing.Attach) error {
	return l.peer.Connect(ctx, remote)
}

func (l *link) Check(ctx context.Context) error {
	err := l.peer.Check(ctx)
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, bootstrap.ErrSilent) || errors.Is(err, context.Canceled) {
		l.ep.engine.Avoid() // also if the listener has sent us away in the middle of it, to come again
	}
	return err
}

func (l *link) Admit() error {
	if !l.peer.Checked() {
		return fmt.Errorf("%w: the dialer confirms without the path check", ErrMalformed)
	}
	if err := l.listener.makeRoom(l.newcomer); err != nil {
		return err
	}
	return l.listener.admission.admit(l.newcomer)
}

func (l *link) Attached(s *bootstrap.Session) {
	if l.listener == nil {
		l.t.pathWorks(l.path)
	}
	l.session.Store(s)
	l.ep.unlink()
	var doorbell engine.Doorbell
	if page := s.Page(); page != nil && l.ep.fab.Waiter() == nil {
		doorbell = engine.Doorbell{Own: page.Own(), Peer: page.Peer(), Ring: page.Ring}
	}
	l.peer.Attached(doorbell)
	if doorbell.Ring != nil && doorbell.Disarm() {
		doorbell.Ring() // for frames that were sent before there was a doorbell
	}
	close(l.settled)
	if l.ep.own {
		l.t.endpoints.spareSoon(l.ep.key, l.listener == nil)
	}
}

func (l *link) Abort(err error) {
	if l.listener == nil {
		l.t.pathFailed(l.path, err)
	}
	l.end(err)
	close(l.settled)
}

// The session calls Doorbell, Heartbeat and Ended.

func (l *link) Doorbell() { l.peer.Doorbell() }

func (l *link) Heartbeat() { l.peer.Heartbeat(l.features&framing.FeatureHeartbeats != 0) }

func (l *link) Ended(err error) {
	l.end(err)
	if l.ep.own && !errors.Is(err, bootstrap.ErrGoodbye) && !errors.Is(err, net.ErrClosed) { // the peer may have died without a goodbye
		shmdir.Clean(shmdir.Dir)
		time.AfterFunc(dyingTime, func() { l.t.spawn(func() { shmdir.Clean(shmdir.Dir) }) })
	}
}

// dyingTime is how long a dying process may take from the end of its connections until it holds
// no locks any more.
const dyingTime = 500 * time.Millisecond

// The engine calls accept, lost and gone, with the endpoint locked.

func (l *link) accept(c *engine.Conn, listener uint32) framing.ResetCode {
	if l.listener == nil || listener != l.listener.number {
		return framing.ResetRefused
	}
	// The dialer's Open may be faster than its Confirm, which comes by another path.
	if err := l.listener.admission.admit(l.newcomer); err != nil {
		return engine.NoAnswer // the end of the handshake says why
	}
	l.used.Store(true)
	conn := newConn(l, c, false)
	code := l.listener.take(conn)
	if code != 0 {
		l.t.conns.Add(-1) // the engine ends it
		l.t.forgetConn(conn)
	}
	return code
}

// lost ends the session, too, so that the peer learns of it. While there is no session, the
// connection belongs to the handshake, which may go on to another provider.
func (l *link) lost(err error, cut int) {
	if l.leavesStale(err) {
		l.ep.engine.Avoid()
	}
	l.t.spawn(func() {
		l.t.links.drop(l)
		<-l.settled
		if s := l.session.Load(); s != nil {
			s.Goodbye()
			l.tellLost(err, cut)
		}
	})
}

// leavesStale reports whether the peer was lost without the provider's knowledge, so that what
// the provider holds of it stays. (When a process dies, its connections die, too.) The
// listening side need not care: the next dial comes from another endpoint.
func (l *link) leavesStale(err error) bool {
	switch {
	case l.listener != nil || l.session.Load() == nil:
		return false
	case errors.Is(err, bootstrap.ErrGoodbye): // the peer may have lost us
		conns, _ := l.peer.Idle()
		return conns > 0
	}
	return errors.Is(err, bootstrap.ErrHeartbeat) || errors.Is(err, syscall.ETIMEDOUT) || errors.Is(err, engine.ErrStuck) ||
		errors.Is(err, engine.ErrSilent) || errors.Is(err, engine.ErrMissing)
}

func (l *link) gone() { l.t.spawn(l.finish) }

// finish gives everything back. The endpoint comes first, since it uses the page that the
// session unmaps.
func (l *link) finish() {
	l.finished.Do(func() {
		<-l.settled // nothing may use the endpoint any more
		l.t.links.drop(l)
		l.t.endpoints.release(l.ep)
		if l.ep.own && l.ep.engine.Stats().Abandoned > 0 {
			l.tellAbandoned()
		}
		var wire bootstrap.Stats
		if s := l.session.Load(); s != nil {
			_ = s.Close()
			wire = s.Stats()
		}
		l.t.links.forget(l, wire)
		if l.listener != nil {
			l.listener.admission.gone(l.newcomer, l.peer)
		}
	})
}

// quit begins to end a link of a Transport that is being closed. Nothing more is posted once
// the peer is told goodbye, since the peer then withdraws its memory. And the peer is told
// before the endpoint is closed.
func (l *link) quit() {
	if l.ep.own { // over shared memory, nobody notices what is withdrawn
		return
	}
	<-l.settled
	l.peer.Quit()
	if s := l.session.Load(); s != nil {
		s.Goodbye()
	}
}

// retire ends a dialed link that has no conns, if none is about to be opened: at once if the
// link is not to be used again, otherwise if it has had none for idle. It reports whether it
// did.
func (l *link) retire(idle time.Duration) bool {
	ls := &l.t.links
	ls.mu.Lock()
	opens, skip := l.opens, !l.dialed || l.users > 0
	if l.dead || !l.reuse {
		idle = 0
	}
	ls.mu.Unlock()
	if skip {
		return false
	}
	if conns, since := l.peer.Idle(); conns > 0 || time.Since(since) < idle {
		return false
	}
	ls.mu.Lock()
	skip = l.users > 0 || l.opens != opens
	if !skip {
		ls.dropLocked(l)
	}
	ls.mu.Unlock()
	if !skip {
		l.discard()
	}
	return !skip
}

// letGo ends an accepted link that has been without conns for leastIdle. It reports whether it
// did. A dial that crosses with this shakes hands with its peer anew: see plan.openOnce.
func (l *link) letGo() bool {
	conns, since := l.peer.Idle()
	return conns == 0 && time.Since(since) >= leastIdle && l.endIdle()
}

// endIdle ends an accepted link that has no conns. It reports whether it did.
func (l *link) endIdle() bool {
	if l.session.Load() == nil || !l.peer.EndIdle(bootstrap.ErrGoodbye) {
		return false
	}
	l.finish()
	return true
}

// discard ends a link in good order, with a goodbye.
func (l *link) discard() {
	l.end(bootstrap.ErrGoodbye)
	l.finish()
}

// end ends a link; lost, which follows, tells the peer. Only the first reason counts.
func (l *link) end(reason error) {
	l.t.links.drop(l)
	l.peer.Lost(reason)
}

// meets reports whether l is alive and leads to the same listener as other.
func (l *link) meets(other *link) bool {
	l.t.links.mu.Lock()
	dead := l.dead
	l.t.links.mu.Unlock()
	a, b := l.session.Load().Remote(), other.session.Load().Remote()
	return !dead && a.Process == b.Process && a.Listener == b.Listener
}

// unused is called when a conn of the link was closed, or could not be opened.
func (l *link) unused() {
	l.t.links.mu.Lock()
	over := l.dialed && (l.dead || !l.reuse)
	l.t.links.mu.Unlock()
	if over {
		l.retire(0)
	}
}

// open opens a conn to the listener that was met in the handshake. If the listener has not let
// this side in after all, the error says why.
func (l *link) open(ctx context.Context, reused bool) (*Conn, error) {
	s := l.session.Load()
	c, err := l.peer.Open(ctx, s.Remote().Listener)
	if errors.Is(err, engine.ErrMemory) && l.t.endpoints.dropSpares() {
		c, err = l.peer.Open(ctx, s.Remote().Listener)
	}
	if err != nil {
		return nil, cmp.Or(s.Rejection(), err)
	}
	l.t.counters.opened.Add(1)
	return newConn(l, c, reused), nil
}
