package rdmanet

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"runtime"
	"runtime/trace"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/bootstrap"
)

// Listener accepts conns. It implements net.Listener. All methods may be called concurrently. A
// Listener that becomes garbage without Close is closed, as a Conn is.
type Listener struct{ in *listener }

// listener is all of a Listener but what tells that the user has dropped it.
type listener struct {
	t      *Transport
	cfg    ListenConfig
	tcp    net.Listener
	addr   *net.TCPAddr
	netns  netns // of the thread that called Listen
	rule   nameRule
	number uint32 // Open frames name it

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	served sync.WaitGroup // serve
	shut   chan struct{}  // closed when tcp is
	events limiter

	admission *admission // handshakes and peers

	deadline atomic.Pointer[alarm]

	mu      sync.Mutex // a leaf: queue is called with an endpoint locked
	backlog chan queued
	closed  bool
}

var _ net.Listener = (*Listener)(nil)

// alarm is a deadline: its context ends when the deadline has passed, or when another one
// takes its place.
type alarm struct {
	context.Context
	cancel context.CancelFunc
}

func newAlarm(t time.Time) *alarm {
	var a alarm
	if t.IsZero() {
		a.Context, a.cancel = context.WithCancel(context.Background())
	} else {
		a.Context, a.cancel = context.WithDeadline(context.Background(), t)
	}
	return &a
}

func newListener(t *Transport, lc *ListenConfig, tcp net.Listener) *listener {
	rule, _ := lc.nameRule() // see validate
	l := &listener{
		t: t, cfg: *lc, tcp: tcp, addr: newAddr(tcp.Addr()), netns: threadNetns(), rule: rule,
		backlog: make(chan queued, orDefault(lc.Backlog, DefaultBacklog)), shut: make(chan struct{}),
		admission: newAdmission(maxHandshakes, orDefault(lc.MaxPeers, DefaultMaxPeers), orDefault(lc.MaxPeersPerHost, DefaultMaxPeersPerHost)),
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.deadline.Store(newAlarm(time.Time{}))
	return l
}

// handOut returns the listener for the user, once.
func (l *listener) handOut() *Listener {
	out := &Listener{l}
	runtime.AddCleanup(out, (*listener).dropped, l)
	return out
}

// queued is what waits for Accept: one of these.
type queued struct {
	fabric *conn
	plain  *net.TCPConn
}

func (q queued) abort() {
	if q.plain == nil {
		q.fabric.abort()
		return
	}
	_ = q.plain.SetLinger(0)
	_ = q.plain.Close()
}

// Addr returns the address on which the Listener listens, a *net.TCPAddr.
func (l *Listener) Addr() net.Addr { return l.in.addr }

// Accept waits for the next conn and returns it: a *Conn or, if AcceptTCP is set, possibly a
// *net.TCPConn. It fails with net.ErrClosed after Close, and with os.ErrDeadlineExceeded after the
// deadline that SetDeadline has set. Failed handshakes do not surface here: Transport.Stats counts
// them, and ListenConfig.Logger is told of them.
func (l *Listener) Accept() (net.Conn, error) {
	defer trace.StartRegion(l.in.ctx, "rdmanet.Accept").End()
	c, err := l.in.accept()
	runtime.KeepAlive(l)
	switch {
	case err != nil:
		return nil, opError("accept", nil, l.in.addr, err)
	case c.plain != nil:
		return c.plain, nil
	}
	return c.fabric.handOut(), nil
}

// SetDeadline sets the deadline of pending and later calls of Accept; the zero time means none.
func (l *Listener) SetDeadline(t time.Time) error {
	err := l.in.setDeadline(t)
	runtime.KeepAlive(l)
	return err
}

// Close stops listening, ends the handshakes under way and resets the conns that were not
// accepted. Accepted conns live on. Further calls fail with net.ErrClosed.
func (l *Listener) Close() error {
	err := l.in.close()
	runtime.KeepAlive(l)
	return err
}

func (l *listener) accept() (c queued, err error) {
	for {
		a := l.deadline.Load()
		switch { // even if conns are waiting, as in TCP
		case l.ctx.Err() != nil:
			return c, net.ErrClosed
		case errors.Is(a.Err(), context.DeadlineExceeded):
			return c, os.ErrDeadlineExceeded
		}
		select {
		case c = <-l.backlog:
			return c, nil
		case <-l.ctx.Done():
		case <-a.Done(): // passed, or replaced
		}
	}
}

func (l *listener) setDeadline(t time.Time) error {
	if err := untimed(t); err != nil {
		return opError("set", nil, l.addr, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return opError("set", nil, l.addr, net.ErrClosed)
	}
	l.deadline.Swap(newAlarm(t)).cancel()
	return nil
}

func (l *listener) close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		<-l.shut // when Close returns, dials are refused, whichever call it is
		return opError("close", nil, l.addr, net.ErrClosed)
	}
	l.closed = true
	l.deadline.Load().cancel()
	l.mu.Unlock()
	l.cancel()
	err := l.tcp.Close()
	close(l.shut)
	l.t.links.part(l.number)
	l.served.Wait()
	for len(l.backlog) > 0 { // closed: it does not grow any more
		select {
		case c := <-l.backlog:
			c.abort()
		default: // an Accept was faster
		}
	}
	l.t.mu.Lock()
	delete(l.t.listeners, l)
	last := len(l.t.listeners) == 0
	l.t.mu.Unlock()
	if last {
		l.t.endpoints.closeIdleSoon() // nobody comes any more
	}
	return opError("close", nil, l.addr, err)
}

// queue puts a conn into the backlog, or returns why not.
func (l *listener) queue(c queued) (code framing.ResetCode, reason string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return framing.ResetRefused, "closed"
	}
	select {
	case l.backlog <- c:
		return 0, ""
	default:
		return framing.ResetRefused, "backlog full"
	}
}

// serve accepts TCP connections and starts their handshakes.
func (l *listener) serve() {
	defer l.cancel() // for Accept, if somebody else has closed tcp
	for {
		nc, err := l.tcp.Accept()
		if err != nil {
			if !l.pause(err) {
				return
			}
			continue
		}
		if !l.receive(nc) {
			nc.Close()
			return
		}
	}
}

// receive starts a connection's handshake. It reports false if the listener is
// being closed.
func (l *listener) receive(nc net.Conn) bool {
	end, err := l.t.begin()
	if err != nil {
		return false
	}
	ctx, cancel := context.WithCancelCause(l.t.ctx)
	n, err := l.admission.enter(l.ctx, cancel, hostOf(addrPort(nc.RemoteAddr()).Addr()))
	if err != nil {
		cancel(nil)
		end()
		return false
	}
	go func() {
		defer end()
		defer l.admission.leave(n)
		defer cancel(nil)
		l.handshake(ctx, cancel, nc, n)
	}()
	return true
}

// makeRoom lets idle peers go until n may become a peer.
func (l *listener) makeRoom(n *newcomer) (err error) {
	var instead func(*newcomer) bool
	match := func(o *link) bool { m := o.met[l.number]; return m != nil && instead(m.newcomer) }
	l.t.links.makeRoom(match, func() bool {
		instead, err = l.admission.full(n)
		return err == nil
	})
	if err != nil {
		l.t.counters.peersRefused.Add(1)
	}
	return err
}

// acceptRetry is how long to wait after the system had, for example, no file descriptor for a
// connection. Meanwhile the oldest handshake gives its own back.
const acceptRetry = 20 * time.Millisecond

// pause pauses after a failed accept, and reports whether to go on.
func (l *listener) pause(err error) bool {
	if l.ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
		return false
	}
	l.failed(nil, err)
	l.admission.drop()
	select {
	case <-time.After(acceptRetry):
		return true
	case <-l.ctx.Done():
		return false
	}
}

// handshake runs one handshake; cancel ends ctx.
func (l *listener) handshake(ctx context.Context, cancel context.CancelCauseFunc, nc net.Conn, n *newcomer) {
	defer trace.StartRegion(ctx, "rdmanet.Accept.handshake").End()
	limit := orDefault(l.cfg.HandshakeTimeout, DefaultHandshakeTimeout)
	ctx, done := context.WithTimeoutCause(ctx, limit, ErrHandshakeTimeout)
	defer done()
	if err := overTCP(nc); err != nil {
		nc.Close()
		l.failed(nil, err)
		return
	}
	b := &binder{t: l.t, nc: nc, netns: l.netns, providers: l.cfg.Providers, nameRule: l.rule, listener: l, logger: l.cfg.Logger, newcomer: n}
	// A conn may be accepted before its peer's handshake has ended. Close must then leave the
	// handshake alone.
	stop := context.AfterFunc(l.ctx, func() {
		if !b.used.Load() {
			cancel(bootstrap.ErrClosing)
		}
	})
	defer stop()
	if l.cfg.AcceptTCP && !l.sniff(ctx, nc) {
		return
	}
	cfg := l.t.bootstrapConfig(l.cfg.KeepAliveConfig)
	cfg.TLS, cfg.Timeout = l.cfg.TLSConfig, limit
	s, binding, err := bootstrap.Accept(ctx, nc, cfg, b)
	if err != nil {
		l.failed(nc, err)
		for _, o := range b.links { // before its place is given to another
			o.clear()
		}
		return
	}
	if s == nil {
		return // the peer is one of another listener, too
	}
	peer := binding.(*link)
	peer.announce()
	s.Start(peer)
}

// sniff reports whether a connection is to be a control connection. It puts plain TCP clients into
// the backlog.
func (l *listener) sniff(ctx context.Context, nc net.Conn) (fabric bool) {
	stop := context.AfterFunc(ctx, func() { nc.Close() })
	deadline, _ := ctx.Deadline()
	fabric, err := bootstrap.Sniff(nc.(*net.TCPConn), deadline)
	switch {
	case !stop():
		err = context.Cause(ctx) // whatever Sniff says of a closed connection
	case errors.Is(err, os.ErrDeadlineExceeded): // the deadline is that of ctx, which is just slower
		err = ErrHandshakeTimeout
	}
	if err != nil {
		nc.Close()
		l.failed(nc, err)
		return false
	}
	if fabric {
		return true
	}
	c, peer := queued{plain: describePlain(nc, nil)}, newAddr(nc.RemoteAddr())
	if l.take(c, peer) != 0 {
		c.abort()
		return false
	}
	l.t.counters.plain.Add(1)
	l.t.events.tell(ctx, l.cfg.Logger, slog.LevelDebug, eventPlain,
		slog.String("listener", l.addr.String()), slog.String("peer", peer.String()))
	return false
}

// refuse counts a refused conn and tells the logger. It must not block.
func (l *listener) refuse(peer *net.TCPAddr, reason string) {
	l.t.counters.refused.Add(1)
	if l.cfg.Logger == nil {
		return
	}
	level, missed := l.events.level(slog.LevelWarn, reason)
	if level != slog.LevelWarn { // one of many, which strangers may have caused
		return
	}
	event := eventRefused
	attrs := []slog.Attr{slog.String("listener", l.addr.String()), slog.String("peer", peer.String()), slog.String("reason", reason)}
	if reason == "memory" {
		m := l.t.budget.Stats()
		event = eventMemory
		attrs = append(attrs, slog.Int64("limit", m.Limit), slog.Int64("used", m.Used))
	}
	if missed > 0 {
		attrs = append(attrs, slog.Int("missed", missed))
	}
	l.t.events.tell(context.Background(), l.cfg.Logger, level, event, attrs...)
}

// take puts a conn into the backlog, or refuses it. It must not block.
func (l *listener) take(c queued, peer *net.TCPAddr) framing.ResetCode {
	code, reason := l.queue(c)
	if code != 0 {
		l.refuse(peer, reason)
		return code
	}
	l.t.counters.opened.Add(1)
	return 0
}

// failed counts a handshake that came to nothing and tells the logger.
func (l *listener) failed(nc net.Conn, err error) {
	if l.ctx.Err() != nil {
		return // because of Close
	}
	reason := failureReason(err)
	l.t.counters.add(l.t.counters.failed, reason)
	if l.cfg.Logger == nil {
		return
	}
	level, missed := l.events.level(slog.LevelWarn, "handshake: "+reason)
	if nc != nil {
		err = opError("accept", newAddr(nc.LocalAddr()), newAddr(nc.RemoteAddr()), err)
	}
	attrs := []slog.Attr{slog.String("listener", l.addr.String()), slog.String("reason", reason), slog.Any("error", err)}
	if nc != nil {
		attrs = append(attrs, slog.String("peer", nc.RemoteAddr().String()))
	}
	if missed > 0 {
		attrs = append(attrs, slog.Int("missed", missed))
	}
	l.t.events.tell(context.Background(), l.cfg.Logger, level, eventFailed, attrs...)
}
