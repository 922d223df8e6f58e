package rdmanet

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
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
// The dialling side opens conns over it, to any listener of the process that has let this side in.
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
	first         *meeting // in which it came about; nil on the dialling side
	theirs        pairEnd  // set by Connect
	used          *atomic.Bool
	path          failureKey // on the dialling side
	nameRule      nameRule
	local, remote *net.TCPAddr         // of the control connection
	refused       []Refusal            // see ConnInfo; set before any conn is opened
	tls           *tls.ConnectionState // see ConnInfo; must not be changed
	logger        *slog.Logger
	abandoned     sync.Once // the logger was told that the endpoint was abandoned

	session  atomic.Pointer[bootstrap.Session]
	settled  chan struct{} // closed when the negotiation has ended
	finished sync.Once

	// Guarded by links.mu: of both sides, of the listening side, and of the dialling side.
	dead   bool                 // not to be used for further conns
	met    map[uint32]*meeting  // by the listener's number
	pair   pairKey              // zero if no other listener may be joined
	keys   map[linkKey]struct{} // of its routes in the cache
	reuse  bool                 // may carry more than one conn
	dialed bool                 // the negotiation has succeeded
	users  int                  // dials that are about to open a conn
	opens  uint64               // how many of these there have been
}

// pairEnd is what the peer calls this side, and how this side proves that it is meant.
type pairEnd struct {
	peer  uint32
	token [16]byte
}

var (
	_ bootstrap.Binding = (*link)(nil)
	_ bootstrap.Handler = (*link)(nil)
)

// accepted reports whether this is the listening side.
func (l *link) accepted() bool { return l.first != nil }

// process returns the peer process of a link that has a session.
func (l *link) process() [16]byte { return l.session.Load().Remote().Process }

// The handshake calls Local, Refused, Connect, Check, Admit, Attached and Abort.

func (l *link) Local() framing.Attach { return l.peer.Local() }

func (l *link) Refused(reasons []string) { l.refused = refusals(reasons) }

func (l *link) Connect(ctx context.Context, remote framing.Attach) error {
	l.theirs = pairEnd{remote.Peer, remote.Token}
	switch ip, err := l.ep.fab.NameIP(remote.Name); {
	case err != nil:
		return fmt.Errorf("%w: the peer's endpoint: %w", ErrMalformed, err)
	case ip.IsValid():
		if err := l.nameRule.check(ip, addrPort(l.remote).Addr()); err != nil {
			return err
		}
	}
	return l.peer.Connect(ctx, remote)
}

func (l *link) Check(ctx context.Context) error {
	err := l.peer.Check(ctx)
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, bootstrap.ErrSilent) || errors.Is(err, context.Canceled) {
		l.ep.avoided.Store(true) // also if the listener has sent us away in the middle of it, to come again
	}
	return err
}

func (l *link) Admit() error {
	if !l.peer.Checked() {
		return fmt.Errorf("%w: the dialer confirms without the path check", ErrMalformed)
	}
	if err := l.first.listener.makeRoom(l.first.newcomer); err != nil {
		return err
	}
	return l.first.listener.admission.admit(l.first.newcomer)
}

func (l *link) Attached(s *bootstrap.Session) {
	if !l.accepted() {
		l.t.works(l.path)
	}
	l.session.Store(s)
	l.ep.unlink()
	var doorbell engine.Doorbell
	var spill engine.Spill
	if page := s.Page(); page != nil && l.ep.fab.Waiter() == nil {
		spill = page.Spill()
		doorbell = page.Doorbell()
	}
	l.peer.Attached(doorbell, spill)
	if doorbell.Ring != nil {
		if asleep, led := doorbell.Disarm(); asleep {
			doorbell.Ring(led) // for frames that were sent before there was a doorbell
		}
	}
	close(l.settled)
	if l.ep.own {
		l.t.endpoints.spareSoon(l.ep.key, !l.accepted())
	}
}

func (l *link) Abort(err error) {
	if !l.accepted() {
		l.t.pathFailed(l.path, err)
	}
	l.left() // what may still come of a path check is little
	l.end(err)
	close(l.settled)
}

// clear waits until nothing is left of a link whose negotiation has failed, unless it has conns after all.
func (l *link) clear() {
	if conns, _, _ := l.peer.Idle(); conns == 0 { // and no more will come
		l.finish()
	}
}

// The session calls Sent, Heartbeat and Ended.

func (l *link) Sent() uint32 { return l.peer.Sent() }

func (l *link) Heartbeat(sent uint32) { l.peer.Heartbeat(sent) }

func (l *link) Ended(err error, rest net.Conn) {
	if rest == nil {
		l.left()
	}
	l.end(err)
	if rest != nil && (l.ep.own || !l.peer.MaySend() || !l.t.spawn(func() { l.linger(rest) })) {
		rest.Close()
	}
	if l.ep.own && !errors.Is(err, bootstrap.ErrGoodbye) && !errors.Is(err, net.ErrClosed) { // the peer may have died without a goodbye
		shmdir.Clean(shmdir.Dir)
		time.AfterFunc(dyingTime, func() { l.t.spawn(func() { shmdir.Clean(shmdir.Dir) }) })
	}
}

// left returns the quota of a peer of which nothing more comes, once it is lost. An endpoint for a single peer goes
// with that.
func (l *link) left() {
	if !l.ep.own {
		l.peer.Left()
	}
}

// linger returns the quota of a peer that was given up. It may live, and send more: until it has closed the
// connection, or its endpoint is closed. What it had sent on the connection may come first.
func (l *link) linger(rest net.Conn) {
	defer rest.Close()
	defer context.AfterFunc(l.ep.closing, func() { rest.Close() })()
	_ = rest.SetReadDeadline(time.Time{})
	const most = 64 << 10 // heartbeats of many hours
	if n, err := io.Copy(io.Discard, io.LimitReader(rest, most)); err == nil && n < most || errors.Is(err, syscall.ECONNRESET) {
		l.left()
	}
}

// dyingTime is how long a dying process may take from the end of its connections until it holds
// no locks any more.
const dyingTime = 500 * time.Millisecond

// The engine calls accept, lost and gone, with the endpoint locked.

func (l *link) accept(c *engine.Conn, listener uint32) (port uint16, code framing.ResetCode) {
	m := l.metAt(listener)
	if m == nil {
		return 0, framing.ResetRefused
	}
	// The dialer's Open may be faster than its Confirm, which comes by another path.
	if err := m.listener.admission.admit(m.newcomer); err != nil {
		return 0, engine.NoAnswer // the end of the handshake says why
	}
	at := l.remote.AddrPort()
	wish := at.Port()
	if l.used.Swap(true) {
		wish = 0 // a conn that was closed may be remembered by it
	}
	ports := &l.t.ports
	if port, code = ports.take(at.Addr(), wish); code != 0 {
		m.listener.refuse(l.remote, "no free port")
		return 0, code
	}
	conn := newConn(l, c, m.local, port, false)
	if code = m.listener.take(queued{fabric: conn}, l.remote); code != 0 {
		l.t.forgetConn(conn) // the engine ends it
		ports.giveBack(at.Addr(), port)
		return 0, code
	}
	c.OnGone(func() { ports.giveBack(at.Addr(), port) })
	return port, 0
}

// lost ends the session, too, so that the peer learns of it. While there is no session, the
// connection belongs to the handshake, which may go on to another provider.
func (l *link) lost(err error, cut int) {
	if l.leavesStale(err) {
		l.ep.avoided.Store(true)
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
	case l.accepted() || l.session.Load() == nil:
		return false
	case errors.Is(err, bootstrap.ErrGoodbye): // the peer may have lost us
		conns, _, _ := l.peer.Idle()
		return conns > 0
	}
	return errors.Is(err, bootstrap.ErrHeartbeat) || errors.Is(err, syscall.ETIMEDOUT) || errors.Is(err, engine.ErrStuck) ||
		errors.Is(err, engine.ErrMissing)
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
		for _, m := range l.t.links.meetings(l) {
			m.listener.admission.gone(m.newcomer, l.peer)
		}
		l.t.links.forget(l, wire)
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
// did. If the link is to end at once, and all its conns are closed but for the peer's answers, it
// is not used again: unused ends it.
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
	conns, closed, since := l.peer.Idle()
	if conns > closed || conns == 0 && time.Since(since) < idle || conns > 0 && idle > 0 {
		return false
	}
	ls.mu.Lock()
	skip = l.users > 0 || l.opens != opens
	if !skip {
		ls.dropLocked(l)
	}
	ls.mu.Unlock()
	if skip {
		return false
	}
	if conns, _, _ = l.peer.Idle(); conns > 0 { // unused is still to come
		return false
	}
	l.discard()
	return true
}

// endingLocked reports whether l is about to go, since nothing uses it any more. Idle takes no lock.
func (l *link) endingLocked() bool {
	conns, closed, since := l.peer.Idle()
	return conns <= closed && (l.dead || l.accepted() && time.Since(since) >= leastIdle)
}

// letGo ends an accepted link that has been without conns for leastIdle. It reports whether it
// did. A dial that crosses with this shakes hands with its peer anew: see plan.openOnce.
func (l *link) letGo() bool {
	conns, _, since := l.peer.Idle()
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
	l.left()
	l.end(bootstrap.ErrGoodbye)
	l.finish()
}

// end ends a link; lost, which follows, tells the peer. Only the first reason counts.
func (l *link) end(reason error) {
	l.t.links.drop(l)
	l.peer.Lost(reason)
}

// unused is called when the link's last conn has gone, with the endpoint locked, and when one could
// not be opened.
func (l *link) unused() {
	l.t.links.mu.Lock()
	over := l.dialed && (l.dead || !l.reuse)
	l.t.links.mu.Unlock()
	if over {
		l.t.spawn(func() { l.retire(0) })
	}
}
