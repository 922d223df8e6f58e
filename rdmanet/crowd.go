package rdmanet

import (
	"container/list"
	"context"
	"errors"
	"sync"
)

// maxHandshakes bounds those that one listener runs at a time.
const maxHandshakes = 1024

// maxAsking bounds how many calls of Authorize go on at a time, those included whose
// handshake is over.
const maxAsking = 64

// errCrowded ends a handshake that newer ones have crowded out.
var errCrowded = errors.New("too many handshakes at a time, this one was among the oldest")

// crowd is the handshakes under way at a listener. There is always room for one
// more: whoever has waited longest without being let in makes room for it. So
// neither connections that say nothing nor those that are slow keep others out,
// however many there are.
type crowd struct {
	slots  chan struct{} // one for each handshake
	asking chan struct{} // one for each call of Authorize

	mu sync.Mutex
	// Oldest first, of *newcomer: those that nothing is known of yet, which go
	// first, and those that were let in.
	strangers, guests list.List
}

// newcomer is one handshake of a crowd.
type newcomer struct {
	in     *list.List // nil once it was dropped, or has left
	at     *list.Element
	cancel context.CancelCauseFunc
}

func newCrowd(size int) *crowd {
	return &crowd{slots: make(chan struct{}, size), asking: make(chan struct{}, maxAsking)}
}

// enter waits until there is room, which it makes if necessary, and fails only
// if ctx ends. cancel must end the handshake soon.
func (c *crowd) enter(ctx context.Context, cancel context.CancelCauseFunc) (*newcomer, error) {
	select {
	case c.slots <- struct{}{}:
	default:
		c.drop()
		select {
		case c.slots <- struct{}{}:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	n := &newcomer{in: &c.strangers, cancel: cancel}
	n.at = n.in.PushBack(n)
	return n, nil
}

// drop ends the oldest handshake.
func (c *crowd) drop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range []*list.List{&c.strangers, &c.guests} {
		if front := l.Front(); front != nil {
			n := front.Value.(*newcomer)
			n.remove()
			n.cancel(errCrowded)
			return
		}
	}
}

// remove takes n off its list.
func (n *newcomer) remove() {
	if n.in != nil {
		n.in.Remove(n.at)
		n.in = nil
	}
}

// welcome notes that a newcomer was let in: strangers make room before it does.
func (c *crowd) welcome(n *newcomer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n.in != nil {
		n.remove()
		n.in = &c.guests
		n.at = n.in.PushBack(n)
	}
}

// leave ends a handshake's stay.
func (c *crowd) leave(n *newcomer) {
	c.mu.Lock()
	n.remove()
	c.mu.Unlock()
	<-c.slots
}

// size is how many handshakes are under way.
func (c *crowd) size() int { return len(c.slots) }
