package rdmanet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"
)

// flightKey is what concurrent dials must have in common to share one handshake: what they need
// to share its link, and how the link is made.
type flightKey struct {
	addrs    string
	instead  *link // on which the listener has refused; else nil
	fallback Fallback
	delay    time.Duration
	alive    net.KeepAliveConfig
	dialKey
}

// errSameListener says that a new handshake met the listener that has already refused.
var errSameListener = errors.New("the listener is still the same")

// flight is a handshake that several dials wait for. It ends early when all of them have given
// up. What changes in it is guarded by links.mu.
type flight struct {
	leader  *plan // the dial that started it
	waiters int
	cancel  context.CancelCauseFunc
	ctx     context.Context // ends with cancel and at the leader's deadline
	done    chan struct{}   // closed when link and err are set
	link    *link
	err     error
}

// link returns a link with the caller counted as a user, from the cache if there is one. If
// instead is not nil, the link is to take its place.
func (p *plan) link(ctx context.Context, instead *link) (l *link, reused bool, err error) {
	if p.DisableReuse {
		l, err := p.connect(ctx)
		if err == nil {
			p.t.links.mu.Lock()
			defer p.t.links.mu.Unlock()
			p.t.links.admitLocked(l, linkKey{}, false, 1)
		}
		return l, false, err
	}
	if l := p.known(instead); l != nil {
		return l, true, nil
	}
	if err := p.resolve(ctx); err != nil {
		return nil, false, err
	}
	for {
		l, f, leads := p.join(ctx, instead)
		if l != nil {
			return l, true, nil
		}
		l, err := p.wait(ctx, f)
		// The dial that started it may have had less time than this one.
		if leads || !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			return l, !leads, err
		}
	}
}

// known finds a link by a name that was resolved recently.
func (p *plan) known(instead *link) *link {
	p.t.links.mu.Lock()
	defer p.t.links.mu.Unlock()
	if p.resolved || !p.recentLocked() {
		return nil // join looks
	}
	return p.cachedLocked(instead)
}

// cachedLocked returns a link from the cache for one of the addresses, with the caller counted as
// a user; nil if there is none.
func (p *plan) cachedLocked(instead *link) *link {
	for _, a := range p.addrs {
		if l := p.t.links.cache[linkKey{a, p.key}]; l != nil && l != instead {
			l.users++
			l.opens++
			return l
		}
	}
	return nil
}

// join finds a link or else a flight. It starts a flight if there is none.
func (p *plan) join(ctx context.Context, instead *link) (l *link, f *flight, leads bool) {
	ls := &p.t.links
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if l := p.cachedLocked(instead); l != nil {
		return l, nil, false
	}
	addrs := slices.SortedFunc(slices.Values(p.addrs), netip.AddrPort.Compare) // name servers change the order
	key := flightKey{fmt.Sprint(addrs), instead, p.Fallback, p.FallbackDelay, p.KeepAliveConfig, p.key}
	if f = ls.flights[key]; f != nil {
		f.waiters++
		return nil, f, false
	}
	f = &flight{leader: p, waiters: 1, done: make(chan struct{})}
	f.ctx, f.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	if deadline, ok := ctx.Deadline(); ok {
		cancel := f.cancel
		var stop context.CancelFunc
		f.ctx, stop = context.WithDeadline(f.ctx, deadline)
		f.cancel = func(cause error) { cancel(cause); stop() }
	}
	ls.flights[key] = f
	p.t.hands.Go(func() { p.fly(f.ctx, f, key) })
	return nil, f, true
}

func (p *plan) fly(ctx context.Context, f *flight, key flightKey) {
	ctx, stop := p.t.until(ctx)
	defer stop()
	defer f.cancel(nil)
	defer close(f.done)
	p.reached.Store(nil)
	l, err := p.connect(ctx)
	if err == nil && key.instead != nil && key.instead.meets(l) {
		l.discard()
		l, err = nil, errSameListener
	}
	ls := &p.t.links
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if f.link, f.err = l, err; l != nil {
		if key.instead != nil {
			ls.dropLocked(key.instead)
		}
		// Now, so that nobody takes it for an idle one.
		ls.admitLocked(l, linkKey{l.remote.ap, p.key}, true, f.waiters)
	}
	if ls.flights[key] == f {
		delete(ls.flights, key)
	}
}

// wait waits for a flight.
func (p *plan) wait(ctx context.Context, f *flight) (*link, error) {
	select {
	case <-f.done:
		return f.link, f.err
	case <-ctx.Done():
	}
	p.leave(f, context.Cause(ctx))
	if deadline, ok := f.ctx.Deadline(); f.ctx.Err() != nil || ok && !time.Now().Before(deadline) {
		select {
		case <-f.done: // its error says best what it was waiting for
			if errors.Is(f.err, ctx.Err()) {
				return nil, f.err
			}
		case <-time.After(endTime):
		}
	}
	return nil, f.unfinished(context.Cause(ctx))
}

// endTime is how long a flight has to say what it was waiting for when its time was over. It is
// told to end at once, but calls of the fabric may take longer.
const endTime = 50 * time.Millisecond

// unfinished returns the error for cause of a dial that does not wait for the flight's own error.
func (f *flight) unfinished(cause error) error {
	oe := f.leader.reached.Load()
	if oe == nil {
		return cause
	}
	out := *oe
	if out.Err = cause; errors.Is(cause, context.DeadlineExceeded) {
		out.Err = fmt.Errorf("%w (%w): it is still under way", ErrHandshakeTimeout, cause)
	}
	return &out
}

// leave ends a dial's wait for a flight, and the flight if nobody else waits.
func (p *plan) leave(f *flight, cause error) {
	ls := &p.t.links
	ls.mu.Lock()
	defer ls.mu.Unlock()
	switch f.waiters--; {
	case f.link != nil:
		f.link.users--
	case f.waiters == 0:
		f.cancel(cause)
		for key, other := range ls.flights { // nobody else may join it
			if other == f {
				delete(ls.flights, key)
			}
		}
	}
}
