package rdmanet

import (
	"cmp"
	"context"
	"errors"
	"net"

	"github.com/seed202c38ff/fabricnet/internal/engine"
)

// route is a way to a listener: the link to its process, and which of that process's listeners
// it is. It never changes.
type route struct {
	link     *link
	listener uint32       // Open frames name it
	remote   *net.TCPAddr // the listener's
	joined   bool         // the link was there before
}

// meets reports whether r is alive and leads to the same listener as other.
func (r *route) meets(other *route) bool {
	ls := &r.link.t.links
	ls.mu.Lock()
	dead := r.link.dead
	ls.mu.Unlock()
	return !dead && r.link.process() == other.link.process() && r.listener == other.listener
}

// open opens a conn to the listener. If the listener has not let this side in after all, the
// error says why.
func (r *route) open(ctx context.Context, reused bool) (*conn, error) {
	l := r.link
	c, err := l.peer.Open(ctx, r.listener)
	if errors.Is(err, engine.ErrMemory) && l.t.endpoints.dropSpare(nil) {
		c, err = l.peer.Open(ctx, r.listener)
	}
	if err != nil {
		return nil, cmp.Or(l.session.Load().Rejection(), inCall("connect", err))
	}
	l.t.counters.opened.Add(1)
	return newConn(l, c, r.remote, c.Port(), reused), nil
}
