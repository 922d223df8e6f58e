package rdmanet

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// flightKey is what concurrent dials have in common that share one handshake.
type flightKey struct {
	addrs string
	dialKey
}

// flight is a handshake that several dials wait for. It ends early when all of
// them have given up. All but done is guarded by Transport.mu.
type flight struct {
	waiters int
	cancel  context.CancelFunc
	done    chan struct{} // closed when link and err are set
	link    *link
	err     error
}

// link returns a link with the caller counted as a user, from the cache if there
// is one.
func (p *plan) link(ctx context.Context) (l *link, reused bool, err error) {
	if p.DisableReuse {
		l, err := p.connect(ctx)
		if err == nil {
			p.t.admit(l, linkKey{}, false, 1)
		}
		return l, false, err
	}
	for {
		l, f, leads := p.join(ctx)
		if l != nil {
			return l, true, nil
		}
		l, err := p.wait(ctx, f)
		// Who started it may have had less time than we have.
		if leads || !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			return l, !leads, err
		}
	}
}

// join finds a link, or else a flight, which it starts if there is none.
func (p *plan) join(ctx context.Context) (l *link, f *flight, leads bool) {
	t := p.t
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, a := range p.addrs {
		if l := t.cache[linkKey{a, p.key}]; l != nil {
			l.users++
			l.opens++
			return l, nil, false
		}
	}
	key := flightKey{fmt.Sprint(p.addrs), p.key}
	if f = t.flights[key]; f != nil {
		f.waiters++
		return nil, f, false
	}
	f = &flight{waiters: 1, done: make(chan struct{})}
	fctx := context.WithoutCancel(ctx)
	if deadline, ok := ctx.Deadline(); ok {
		fctx, f.cancel = context.WithDeadline(fctx, deadline)
	} else {
		fctx, f.cancel = context.WithCancel(fctx)
	}
	t.flights[key] = f
	t.hands.Go(func() { p.fly(fctx, f, key) })
	return nil, f, true
}

func (p *plan) fly(ctx context.Context, f *flight, key flightKey) {
	t := p.t
	ctx, stop := t.until(ctx)
	defer stop()
	defer f.cancel()
	defer close(f.done)
	l, err := p.connect(ctx)
	if err == nil {
		t.admit(l, linkKey{l.remote.ap, p.key}, true, 0)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if f.link, f.err = l, err; l != nil {
		l.users += f.waiters
	}
	if t.flights[key] == f {
		delete(t.flights, key)
	}
}

// wait waits for a flight.
func (p *plan) wait(ctx context.Context, f *flight) (*link, error) {
	select {
	case <-f.done:
		return f.link, f.err
	case <-ctx.Done():
	}
	t := p.t
	t.mu.Lock()
	defer t.mu.Unlock()
	switch f.waiters--; {
	case f.link != nil:
		f.link.users--
	case f.waiters == 0:
		f.cancel()
		for key, other := range t.flights { // nobody else may join it
			if other == f {
				delete(t.flights, key)
			}
		}
	}
	return nil, context.Cause(ctx)
}

// admit makes a link one of those that dials use. A zero key keeps it out of the
// cache.
func (t *Transport) admit(l *link, key linkKey, reuse bool, users int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l.key, l.reuse, l.dialed = key, reuse, true
	l.users += users
	if reuse && !l.dead {
		t.cache[key] = l
	}
	if t.janitor == nil && !t.drained {
		t.janitor = time.AfterFunc(t.cleaning(), func() { t.spawn(t.clean) })
	}
}

// cleaning is how often idle peers are looked for.
func (t *Transport) cleaning() time.Duration {
	return max(t.idleTimeout()/4, time.Millisecond)
}

// clean closes idle peers, for as long as there are dialed ones.
func (t *Transport) clean() {
	left := t.sweep(t.idleTimeout())
	t.mu.Lock()
	defer t.mu.Unlock()
	if left && !t.drained {
		t.janitor.Reset(t.cleaning())
	} else {
		t.janitor = nil
	}
}

// sweep closes the dialed peers that have been without conns for idle. It
// reports whether any are left.
func (t *Transport) sweep(idle time.Duration) (left bool) {
	t.mu.Lock()
	links := keys(t.links)
	t.mu.Unlock()
	for _, l := range links {
		l.retire(idle)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for l := range t.links {
		left = left || l.dialed
	}
	return left
}
