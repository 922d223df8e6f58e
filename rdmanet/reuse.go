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
	instead  *route // on which the listener has refused; else nil
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
	done    chan struct{}   // closed when route and err are set
	route   *route
	err     error
}

// route returns a route to the listener, with the caller counted as a user of its link, from the
// cache if there is one. If instead is not nil, the route is to take its place.
func (p *plan) route(ctx context.Context, instead *route) (r *route, reused bool, err error) {
	if p.DisableReuse {
		r, err := p.connect(ctx)
		if err == nil {
			p.t.links.mu.Lock()
			defer p.t.links.mu.Unlock()
			p.t.links.admitLocked(r, linkKey{}, false)
		}
		return r, false, err
	}
	if r := p.known(instead); r != nil {
		return r, true, nil
	}
	if err := p.resolve(ctx); err != nil {
		return nil, false, err
	}
	if p.apart() {
		return p.alone(ctx, instead)
	}
	for {
		r, f, leads := p.join(ctx, instead)
		if r != nil {
			return r, true, nil
		}
		r, err := p.wait(ctx, f)
		// The dial that started it may have had less time than this one.
		if leads || !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			return r, !leads || r != nil && r.joined, err
		}
	}
}

// known finds a route by a name that was resolved recently.
func (p *plan) known(instead *route) *route {
	p.t.links.mu.Lock()
	defer p.t.links.mu.Unlock()
	if p.resolved || !p.recentLocked() {
		return nil // join looks
	}
	return p.cachedLocked(instead)
}

// cachedLocked returns a route from the cache to one of the addresses, with the caller counted as
// a user; nil if there is none.
func (p *plan) cachedLocked(instead *route) *route {
	for _, a := range p.addrs {
		if r := p.t.links.cache[linkKey{a, p.key}]; r != nil && r != instead {
			p.t.links.useLocked(r.link, 1)
			return r
		}
	}
	return nil
}

// join finds a route or else a flight. It starts a flight if there is none.
func (p *plan) join(ctx context.Context, instead *route) (r *route, f *flight, leads bool) {
	ls := &p.t.links
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if r := p.cachedLocked(instead); r != nil {
		return r, nil, false
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
	p.t.hands.start(func() { p.fly(f.ctx, f, key) })
	return nil, f, true
}

func (p *plan) fly(ctx context.Context, f *flight, key flightKey) {
	ctx, stop := p.t.until(ctx)
	defer stop()
	defer f.cancel(nil)
	defer close(f.done)
	p.reached.Store(nil)
	r, err := p.replace(ctx, key.instead)
	ls := &p.t.links
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if f.route, f.err = r, err; r != nil {
		ls.replaceLocked(r, p.key, key.instead)
		ls.useLocked(r.link, f.waiters) // now, so that nobody takes it for an idle one
		r.link.users--
	}
	if ls.flights[key] == f {
		delete(ls.flights, key)
	}
}

// alone is what a dial does that cannot leave its handshake to another goroutine.
func (p *plan) alone(ctx context.Context, instead *route) (r *route, reused bool, err error) {
	ls := &p.t.links
	ls.mu.Lock()
	r = p.cachedLocked(instead)
	ls.mu.Unlock()
	if r != nil {
		return r, true, nil
	}
	if r, err = p.replace(ctx, instead); err != nil {
		return nil, false, err
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.replaceLocked(r, p.key, instead)
	return r, r.joined, nil
}

// replace is connect. It fails if the listener is that to which instead leads.
func (p *plan) replace(ctx context.Context, instead *route) (*route, error) {
	r, err := p.connect(ctx)
	if err != nil || instead == nil || !instead.meets(r) {
		return r, err
	}
	p.t.links.unuse(r.link)
	if !r.joined {
		r.link.discard()
	}
	return nil, errSameListener
}

// replaceLocked puts a route into the cache, in the place of instead if that is not nil.
func (ls *links) replaceLocked(r *route, key dialKey, instead *route) {
	ls.admitLocked(r, linkKey{addrPort(r.remote), key}, true)
	if instead != nil {
		ls.dropRouteLocked(instead)
	}
}

// wait waits for a flight.
func (p *plan) wait(ctx context.Context, f *flight) (*route, error) {
	select {
	case <-f.done:
		return f.route, f.err
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
	case f.route != nil:
		f.route.link.users--
	case f.waiters == 0:
		f.cancel(cause)
		for key, other := range ls.flights { // nobody else may join it
			if other == f {
				delete(ls.flights, key)
			}
		}
	}
}
