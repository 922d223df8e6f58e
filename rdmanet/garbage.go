package rdmanet

import "log/slog"

// The events about what the program has dropped without closing it.
const (
	eventDroppedConn     = "rdmanet: conn dropped without Close"
	eventDroppedListener = "rdmanet: listener dropped without Close"
)

// dropped is called when the user's Conn has become garbage.
func (c *conn) dropped() {
	if c.closed.Load() {
		return
	}
	t := c.link.t
	t.counters.dropped.Add(1)
	t.collect(func() {
		level, missed := t.garbage.level(slog.LevelWarn, eventDroppedConn)
		local, remote := c.addrs()
		c.link.tellAt(level, missed, eventDroppedConn, slog.String("conn", local.String()+"->"+remote.String()))
		_ = c.close() // nobody is there to be told
	})
}

// dropped is called when the user's Listener has become garbage.
func (l *listener) dropped() {
	l.mu.Lock()
	closed := l.closed
	l.mu.Unlock()
	if closed {
		return
	}
	l.t.counters.dropped.Add(1)
	l.t.collect(func() {
		l.t.events.tell(l.ctx, l.cfg.Logger, slog.LevelWarn, eventDroppedListener, slog.String("listener", l.addr.String()))
		_ = l.close()
	})
}

// collect runs f in a goroutine that Close waits for, or just runs it once Close has ended all that
// f could wait for.
func (t *Transport) collect(f func()) {
	if !t.spawn(f) {
		f()
	}
}
