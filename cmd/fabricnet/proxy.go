package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed202c38ff/fabricnet/cmd/fabricnet/internal/connlimit"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// proxy connects conns to an endpoint. Its fields must not be changed while it serves.
type proxy struct {
	to     endpoint
	dialer *rdmanet.Dialer // one, so that conns to one server share a control connection
	admission
	limits
	log       *slog.Logger
	lostLines *atomic.Uint64 // of the log, or nil

	places connlimit.Limiter
	counts counters
	hush   connlimit.Hush[outcome]
}

// outcome says why a conn has ended. Each conn that was accepted counts once.
type outcome int

const (
	done outcome = iota
	brokenOff
	idle
	cutOff
	notAllowed
	tooMany
	tooManyOfHost
	noHeader
	cannotConnect
	outcomes
)

var outcomeNames = [outcomes]string{
	"done", "broken off", "idle", "cut off", "not allowed", "too many", "too many from one host", "no header", "cannot connect",
}

func (o outcome) String() string { return outcomeNames[o] }

type counters struct {
	open           atomic.Int64 // conns being forwarded
	ended          [outcomes]atomic.Uint64
	sent, received atomic.Uint64 // bytes, by clients and to them
}

var (
	errIdle = errors.New("nothing was carried for --idle-timeout")
	errCut  = errors.New("the proxy ends, and --grace is over")
)

// acceptRetry is how long to wait after a failed Accept: the process may have run out
// of file descriptors.
const acceptRetry = 100 * time.Millisecond

// serve forwards the conns of l until ctx ends. It then closes l, lets conns go on for
// the grace period, and resets those that are left.
func (p *proxy) serve(ctx context.Context, l net.Listener) {
	at := endpoint{l.Addr().Network(), l.Addr().String()}
	if _, fabric := l.(*rdmanet.Listener); fabric {
		at.network = "rdma"
	}
	p.log.Info("listening", "at", at.String(), "to", p.to.String())
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	p.places.Max, p.places.MaxPerHost = p.maxConns, p.maxPerHost
	alive, cut := context.WithCancelCause(context.Background())
	defer cut(nil)
	var conns sync.WaitGroup
	for ctx.Err() == nil {
		c, err := l.Accept()
		switch {
		case err == nil:
			p.accepted(alive, &conns, c.(conn))
		case errors.Is(err, net.ErrClosed):
			<-ctx.Done()
		default:
			p.log.Warn("cannot accept", "error", err)
			pause(ctx, acceptRetry)
		}
	}
	l.Close() // or wait for the Close that ctx has triggered
	p.drain(&conns, func() { cut(errCut) })
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// accepted starts to forward c, or resets it if it may not come in. A client does not have to wait
// for others to leave: it can try elsewhere, or later.
func (p *proxy) accepted(alive context.Context, conns *sync.WaitGroup, c conn) {
	if !p.network(c.RemoteAddr()) {
		p.refuse(c, notAllowed)
		return
	}
	leave, err := p.places.Enter(c.RemoteAddr())
	switch {
	case errors.Is(err, connlimit.ErrHost):
		p.refuse(c, tooManyOfHost)
	case err != nil:
		p.refuse(c, tooMany)
	default:
		p.counts.open.Add(1)
		conns.Go(func() {
			defer p.counts.open.Add(-1)
			defer leave()
			p.counts.ended[p.forward(alive, c)].Add(1)
		})
	}
}

func (p *proxy) refuse(c conn, why outcome) {
	n := p.counts.ended[why].Add(1) // before the client can tell
	reset(c)
	if p.hush.Over(why) {
		p.log.Warn("refused", "from", c.RemoteAddr().String(), "why", why.String(), "so far", n)
	}
}

// drain waits for conns, and cuts them off when the grace period is over.
func (p *proxy) drain(conns *sync.WaitGroup, cut func()) {
	p.log.Info("draining", "conns", p.counts.open.Load(), "grace", p.grace)
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		conns.Wait()
	}()
	select {
	case <-gone:
		return
	case <-time.After(p.grace):
	}
	n := p.counts.open.Load()
	cut() // first, since the log may be slow
	if n > 0 {
		p.log.Warn("cutting off", "conns", n)
	}
	<-gone
}

// forward connects c to the target and copies until both directions have ended, or
// one has failed. The end of alive resets both conns.
func (p *proxy) forward(alive context.Context, c conn) outcome {
	start, log := time.Now(), p.log.With("from", c.RemoteAddr().String())
	ctx, end := context.WithCancelCause(alive)
	defer end(nil)
	guard(c)
	stopClient := context.AfterFunc(ctx, func() { reset(c) })
	defer stopClient()
	via, first := routeOf(c), []byte(nil)
	if p.acceptProxy {
		var err error
		if via, first, err = readHeader(c, p.dial); err != nil {
			reset(c)
			log.Warn("no header", "error", err)
			return noHeader
		}
		log = log.With("for", via.from.String())
	}
	target, err := p.connect(ctx, via)
	if err != nil {
		reset(c)
		log.Error("cannot connect", "to", p.to.String(), "error", err)
		return cannotConnect
	}
	stopTarget := context.AfterFunc(ctx, func() { reset(target) })
	defer stopTarget()

	l := &link{client: c, target: target, first: first, active: newActivity(), counts: &p.counts}
	if p.idle > 0 {
		go l.active.watch(ctx, p.idle, func() { end(errIdle) })
	}
	err = errors.Join(l.join(), closeBoth(c, target))
	args := slices.Concat(
		[]any{"sent", l.sent, "received", l.received, "took", time.Since(start).Round(time.Microsecond)},
		provider("provider", c), provider("providerTo", target))
	return p.report(log, context.Cause(ctx), err, args)
}

// connect dials the target, and passes on the route if that is asked for.
func (p *proxy) connect(ctx context.Context, via route) (conn, error) {
	dialing, cancel := context.WithTimeoutCause(ctx, p.dial, fmt.Errorf("--dial-timeout %v is over", p.dial))
	defer cancel()
	target, err := p.to.dial(dialing, p.dialer)
	if err != nil {
		return nil, errors.Join(err, context.Cause(dialing))
	}
	guard(target)
	if p.sendProxy {
		if err := writeHeader(target, via, p.dial); err != nil {
			reset(target)
			return nil, err
		}
	}
	return target, nil
}

// report logs how a conn has ended. why is the proxy's own reason for cutting it off, if it did.
func (p *proxy) report(log *slog.Logger, why, err error, args []any) outcome {
	switch {
	case why != nil:
		log.Warn("cut off", append(args, "why", why)...)
		if errors.Is(why, errIdle) {
			return idle
		}
		return cutOff
	case err != nil:
		log.Warn("broken off", append(args, "error", err)...)
		return brokenOff
	}
	log.Info("done", args...)
	return done
}

// provider returns what to log about a conn over a fabric.
func provider(key string, c conn) []any {
	if c, ok := c.(*rdmanet.Conn); ok {
		return []any{key, c.Info().Provider}
	}
	return nil
}
