package rdmanet

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"runtime/trace"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/bootstrap"
)

// Listener accepts conns. It implements net.Listener. All methods may be called concurrently.
type Listener struct {
	t      *Transport
	cfg    ListenConfig
	tcp    net.Listener
	addr   *Addr
	number uint32 // Open frames name it

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	served sync.WaitGroup // serve
	shut   chan struct{}  // closed when tcp is
	events limiter

	admission *admission // handshakes and peers

	deadline atomic.Pointer[alarm]

	mu      sync.Mutex // a leaf: queue is called with an endpoint locked
	backlog chan *Conn
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

func newListener(t *Transport, lc *ListenConfig, tcp net.Listener) *Listener {
	l := &Listener{
		t: t, cfg: *lc, tcp: tcp, addr: newAddr(networkName, tcp.Addr()),
		backlog: make(chan *Conn, orDefault(lc.Backlog, DefaultBacklog)), shut: make(chan struct{}),
		admission: newAdmission(maxHandshakes, orDefault(lc.MaxPeers, DefaultMaxPeers), orDefault(lc.MaxPeersPerHost, DefaultMaxPeersPerHost)),
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.deadline.Store(newAlarm(time.Time{}))
	return l
}

// Addr returns the address on which the Listener listens, a *Addr.
func (l *Listener) Addr() net.Addr { return l.addr }

// Accept waits for the next conn and returns it, a *Conn. It fails with net.ErrClosed after
// Close, and with os.ErrDeadlineExceeded after the deadline that SetDeadline has set. Failed
// handshakes do not surface here: Transport.Stats counts them, and ListenConfig.Logger is
// told of them.
func (l *Listener) Accept() (net.Conn, error) {
	defer trace.StartRegion(l.ctx, "rdmanet.Accept").End()
	c, err := l.accept()
	if err != nil {
		return nil, opError("accept", nil, l.addr, err)
	}
	return c, nil
}

func (l *Listener) accept() (*Conn, error) {
	for {
		a := l.deadline.Load()
		switch { // even if conns are waiting, as in TCP
		case l.ctx.Err() != nil:
			return nil, net.ErrClosed
		case errors.Is(a.Err(), context.DeadlineExceeded):
			return nil, os.ErrDeadlineExceeded
		}
		select {
		case c := <-l.backlog:
			return c, nil
		case <-l.ctx.Done():
		case <-a.Done(): // passed, or replaced
		}
	}
}

// SetDeadline sets the deadline of pending and later calls of Accept; the zero time means none.
func (l *Listener) SetDeadline(t time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return opError("set", nil, l.addr, net.ErrClosed)
	}
	l.deadline.Swap(newAlarm(t)).cancel()
	return nil
}

// Close stops listening, ends the handshakes under way and resets the conns that were not
// accepted. Accepted conns live on. Further calls fail with net.ErrClosed.
func (l *Listener) Close() error {
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
		l.t.closeIdleSoon() // nobody comes any more
	}
	return opError("close", nil, l.addr, err)
}

// queue puts a conn into the backlog, or returns why not.
func (l *Listener) queue(c *Conn) (code framing.ResetCode, reason string) {
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
func (l *Listener) serve() {
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
func (l *Listener) receive(nc net.Conn) bool {
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
func (l *Listener) makeRoom(n *newcomer) error {
	for {
		instead, err := l.admission.full(n)
		if err == nil {
			return nil
		}
		idle := func(o *link) bool { return o.listener == l && instead(o.newcomer) }
		if !l.t.links.endIdle(idle, (*link).letGo) {
			l.t.counters.peersRefused.Add(1)
			return err
		}
	}
}

// acceptRetry is how long to wait after the system had, for example, no file descriptor for a
// connection. Meanwhile the oldest handshake gives its own back.
const acceptRetry = 20 * time.Millisecond

// pause pauses after a failed accept, and reports whether to go on.
func (l *Listener) pause(err error) bool {
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
func (l *Listener) handshake(ctx context.Context, cancel context.CancelCauseFunc, nc net.Conn, n *newcomer) {
	defer trace.StartRegion(ctx, "rdmanet.Accept.handshake").End()
	limit := orDefault(l.cfg.HandshakeTimeout, DefaultHandshakeTimeout)
	ctx, done := context.WithTimeoutCause(ctx, limit, ErrHandshakeTimeout)
	defer done()
	if err := overTCP(nc); err != nil {
		nc.Close()
		l.failed(nil, err)
		return
	}
	b := &binder{t: l.t, nc: nc, providers: l.cfg.Providers, listener: l, logger: l.cfg.Logger, newcomer: n}
	// A conn may be accepted before its peer's handshake has ended. Close must then leave the
	// handshake alone.
	stop := context.AfterFunc(l.ctx, func() {
		if !b.used.Load() {
			cancel(bootstrap.ErrClosing)
		}
	})
	defer stop()
	if l.cfg.AcceptTCP {
		var plain bool
		if nc, plain = l.sniff(ctx, nc); plain || nc == nil {
			return
		}
	}
	cfg := l.t.bootstrapConfig(l.cfg.KeepAliveConfig)
	cfg.TLS, cfg.Timeout = l.cfg.TLSConfig, limit
	b.nc = nc
	s, binding, err := bootstrap.Accept(ctx, nc, cfg, b)
	if err != nil {
		l.failed(nc, err)
		return
	}
	peer := binding.(*link)
	peer.announce()
	s.Start(peer)
}

// sniff puts plain TCP clients into the backlog. It returns no connection if there is none any
// more.
func (l *Listener) sniff(ctx context.Context, nc net.Conn) (replay net.Conn, plain bool) {
	stop := context.AfterFunc(ctx, func() { nc.Close() })
	deadline, _ := ctx.Deadline()
	fabric, replay, err := bootstrap.Sniff(nc, deadline)
	switch {
	case !stop():
		err = context.Cause(ctx) // whatever Sniff says of a closed connection
	case errors.Is(err, os.ErrDeadlineExceeded): // the deadline is that of ctx, which is just slower
		err = ErrHandshakeTimeout
	}
	if err != nil {
		nc.Close()
		l.failed(nc, err)
		return nil, false
	}
	if fabric {
		return replay, false
	}
	c := newTCPConn(l.t, nc, replay, nil)
	if l.take(c) != 0 {
		c.abort()
	} else {
		l.t.events.tell(ctx, l.cfg.Logger, slog.LevelDebug, eventPlain,
			slog.String("listener", l.addr.String()), slog.String("peer", c.remote.String()))
	}
	return replay, true
}

func (l *Listener) connAddr(a net.Addr) *Addr { return newAddr(networkName, a) }

// refuse counts a refused conn and tells the logger. It must not block.
func (l *Listener) refuse(peer *Addr, reason string) {
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
func (l *Listener) take(c *Conn) framing.ResetCode {
	code, reason := l.queue(c)
	if code != 0 {
		l.refuse(c.remote, reason)
		return code
	}
	l.t.counters.opened.Add(1)
	return 0
}

// failed counts a handshake that came to nothing and tells the logger.
func (l *Listener) failed(nc net.Conn, err error) {
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
		err = opError("accept", l.connAddr(nc.LocalAddr()), l.connAddr(nc.RemoteAddr()), err)
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
