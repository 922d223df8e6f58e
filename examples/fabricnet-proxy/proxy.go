package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// conn is what conns of all networks have: they end one direction at a time.
type conn interface {
	net.Conn
	CloseRead() error
	CloseWrite() error
}

var (
	_ conn = (*net.TCPConn)(nil)
	_ conn = (*net.UnixConn)(nil)
	_ conn = (*rdmanet.Conn)(nil)
)

// proxy connects conns to an endpoint. Its fields must not be changed while it serves.
type proxy struct {
	to                 endpoint
	dialTimeout, grace time.Duration
	log                *slog.Logger

	open atomic.Int64 // conns being forwarded
}

// acceptRetry is how long to wait after a failed Accept: the process may have run out
// of file descriptors.
const acceptRetry = 100 * time.Millisecond

// serve forwards the conns of l until ctx ends. It then closes l, lets conns go on for
// the grace period, and resets those that are left.
func (p *proxy) serve(ctx context.Context, l net.Listener) {
	at := endpoint{l.Addr().Network(), l.Addr().String()}
	p.log.Info("listening", "at", at.String(), "to", p.to.String())
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	alive, cut := context.WithCancel(context.Background())
	defer cut()
	var conns sync.WaitGroup
	for ctx.Err() == nil {
		c, err := l.Accept()
		switch {
		case err == nil:
			p.open.Add(1)
			conns.Go(func() {
				defer p.open.Add(-1)
				p.forward(alive, c.(conn))
			})
		case errors.Is(err, net.ErrClosed):
			<-ctx.Done()
		default:
			p.log.Warn("cannot accept", "error", err)
			pause(ctx, acceptRetry)
		}
	}
	l.Close() // or wait for whom ctx has told to
	p.drain(&conns, cut)
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// drain waits for conns, and cuts them off when the grace period is over.
func (p *proxy) drain(conns *sync.WaitGroup, cut func()) {
	p.log.Info("draining", "conns", p.open.Load(), "grace", p.grace)
	limit := time.AfterFunc(p.grace, func() {
		if n := p.open.Load(); n > 0 {
			p.log.Warn("cutting off", "conns", n)
		}
		cut()
	})
	defer limit.Stop()
	conns.Wait()
}

// forward connects c to the target and copies until both directions have ended, or
// one has failed. The end of alive resets both conns.
func (p *proxy) forward(alive context.Context, c conn) {
	start, log := time.Now(), p.log.With("from", c.RemoteAddr().String())
	ctx, cancel := context.WithTimeout(alive, p.dialTimeout)
	target, err := p.to.dial(ctx)
	cancel()
	if err != nil {
		reset(c)
		log.Error("cannot connect", "to", p.to.String(), "error", err)
		return
	}
	stop := context.AfterFunc(alive, func() { reset(c, target) })
	defer stop()
	sent, received, err := join(c, target)
	err = errors.Join(err, closeBoth(c, target))
	args := slices.Concat(
		[]any{"sent", sent, "received", received, "took", time.Since(start).Round(time.Microsecond)},
		provider("provider", c), provider("providerTo", target))
	if err != nil {
		log.Warn("broken off", append(args, "error", err)...)
		return
	}
	log.Info("done", args...)
}

// provider is what to log of a conn over a fabric.
func provider(key string, c conn) []any {
	if c, ok := c.(*rdmanet.Conn); ok {
		return []any{key, c.Info().Provider}
	}
	return nil
}

// join copies in both directions at once, a to b and b to a.
func join(a, b conn) (sent, received int64, err error) {
	var there, back error
	var copying sync.WaitGroup
	copying.Go(func() { sent, there = pipe(b, a) })
	received, back = pipe(a, b)
	copying.Wait()
	return sent, received, cause(there, back)
}

// cause is the error that ended the other direction, too, by closing its conns.
func cause(a, b error) error {
	if a == nil || b != nil && errors.Is(a, net.ErrClosed) {
		return b
	}
	return a
}

// pipe copies one direction and passes its end on. io.Copy leaves the copying to the
// conns' own ReadFrom and WriteTo, which know the cheapest way.
func pipe(dst, src conn) (int64, error) {
	n, err := io.Copy(dst, src)
	switch {
	case err == nil:
		err = ended(dst.CloseWrite())
	case errors.Is(err, syscall.EPIPE):
		// dst is closed and hears no more. What it said before may still be on its
		// way to src, so that only this direction ends.
		err = ended(src.CloseRead())
	default:
		reset(dst, src)
	}
	return n, err
}

// ended ignores that a conn whose direction is to end has none any more.
func ended(err error) error {
	if errors.Is(err, syscall.ENOTCONN) || errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// closeBoth closes conns at the same time: over a fabric Close waits until the peer has
// everything.
func closeBoth(a, b conn) error {
	var errA, errB error
	var closing sync.WaitGroup
	closing.Go(func() { errA = ended(a.Close()) })
	errB = ended(b.Close())
	closing.Wait()
	return errors.Join(errA, errB)
}

// reset closes conns such that the peer gets an error, where the network knows
// that, and no end of stream.
func reset(conns ...conn) {
	for _, c := range conns {
		if c, ok := c.(interface{ SetLinger(sec int) error }); ok {
			_ = c.SetLinger(0)
		}
		_ = c.Close()
	}
}
