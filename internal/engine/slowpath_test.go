package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/internal/race"
)

// thinPath is an endpoint on a thin path: it takes rate bytes a second, in order, and is otherwise without fault.
type thinPath struct {
	fabric.Endpoint
	rate atomic.Int64
	mu   sync.Mutex
	free time.Time // when the path has carried what it took
}

func (e *thinPath) Exchange(ops []fabric.Op, done []fabric.Completion) (posted, reaped int, err error) {
	rate := e.rate.Load()
	if rate == 0 {
		return e.Endpoint.Exchange(ops, done)
	}
	e.mu.Lock()
	n := 0
	for ; n < len(ops); n++ {
		if ops[n].Kind == fabric.Recv {
			continue
		}
		now := time.Now()
		if now.Before(e.free) {
			break
		}
		e.free = now.Add(time.Duration(len(ops[n].Buf)) * time.Second / time.Duration(rate))
	}
	e.mu.Unlock()
	return e.Endpoint.Exchange(ops[:n], done)
}

// deepQueue is an endpoint that takes all, and sends it in order at rate, once set. If frames overtake, only writes wait.
type deepQueue struct {
	fabric.Endpoint
	overtake bool
	rate     atomic.Int64
	mu       sync.Mutex
	queue    []fabric.Op
	sends    bool // a timer is going to send the first of them
}

func (e *deepQueue) Exchange(ops []fabric.Op, done []fabric.Completion) (posted, reaped int, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.rate.Load() == 0 {
		return e.Endpoint.Exchange(ops, done)
	}
	for _, op := range ops {
		switch {
		case op.Kind == fabric.Recv, e.overtake && op.Kind != fabric.Write && op.Kind != fabric.WriteData:
			if _, _, err := e.Endpoint.Exchange([]fabric.Op{op}, nil); err != nil {
				return 0, 0, err
			}
			continue
		case op.Kind == fabric.Inject:
			op.Buf = slices.Clone(op.Buf)
		}
		e.queue = append(e.queue, op)
	}
	e.sendLocked()
	_, reaped, err = e.Endpoint.Exchange(nil, done)
	return len(ops), reaped, err
}

// sendLocked sees to it that the queue's first operation is sent when its bytes have passed.
func (e *deepQueue) sendLocked() {
	if e.sends || len(e.queue) == 0 {
		return
	}
	e.sends = true
	takes := time.Duration(len(e.queue[0].Buf)) * time.Second / time.Duration(e.rate.Load())
	time.AfterFunc(max(takes, time.Microsecond), func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		n, _, err := e.Endpoint.Exchange(e.queue[:1], nil)
		if e.queue = e.queue[n:]; err != nil {
			e.queue = nil
		}
		e.sends = false
		e.sendLocked()
	})
}

// TestBehindMegabytes: frames, and the ends of streams whose writes are behind those of others, are not lost
// because they wait for longer than DeadAfter in the provider's queue.
func TestBehindMegabytes(t *testing.T) {
	for _, preset := range simfabric.Presets() {
		if preset.SameHost || preset.Name == "no large data" { // nothing is behind a write
			continue
		}
		ordered := preset.Order&fabric.SendAfterWrite != 0 || preset.Provider == "net"
		for _, dead := range []time.Duration{100 * time.Millisecond, time.Second} {
			for _, percent := range []time.Duration{75, 40, 20} { // of dead, for each step
				t.Run(fmt.Sprintf("%s/%v/%d", preset.Name, dead, percent), func(t *testing.T) {
					behindMegabytes(t, preset.Personality, dead, dead*percent/100, false)
					if !ordered {
						behindMegabytes(t, preset.Personality, dead, dead*percent/100, true)
					}
				})
			}
		}
	}
}

// behindMegabytes has conns write over a path that takes that long for each step.
func behindMegabytes(t *testing.T, p simfabric.Personality, dead, step time.Duration, overtake bool) {
	synctest.Test(t, func(t *testing.T) {
		sim, cfg := simfabric.Config{Seed: 1, Personality: p}, Config{Spin: -1, DeadAfter: dead}
		l, ends := newLinkOn(t, sim, cfg, func(e fabric.Endpoint) *deepQueue { return &deepQueue{Endpoint: e, overtake: overtake} })
		var all sync.WaitGroup
		var got atomic.Int64
		var conns [8][2]*Conn
		for i := range conns {
			conns[i][0], conns[i][1] = l.dial(t)
		}
		ends[0].rate.Store(int64(stepSize * time.Second / step))
		for _, c := range conns {
			writes(&all, c[0], 1<<20+100, 0)
			reads(&all, c[1], &got)
		}
		longest := l.beats(dead/3, 40*dead, &got)
		assert.NoError(t, l.a.why(), "overtake: %v", overtake)
		assert.NoError(t, l.b.why(), "overtake: %v", overtake)
		assert.Greater(t, longest, step/2, "the path was slow enough")
		l.part(t, &all)
	})
}

// part ends both peers, those who use their conns, and the endpoints.
func (l *link) part(t *testing.T, all *sync.WaitGroup) {
	l.a.Lost(errGoodbye)
	l.b.Lost(errGoodbye)
	all.Wait()
	l.end(t)
}

// writes has c write n bytes at a time until it fails, with pauses.
func writes(all *sync.WaitGroup, c *Conn, n int, pause time.Duration) {
	all.Go(func() {
		for writeN(c, n) == nil {
			time.Sleep(pause)
		}
	})
}

// sends has c send Buffers of n bytes until it fails.
func sends(all *sync.WaitGroup, c *Conn, n int) {
	all.Go(func() {
		for {
			b, err := c.AllocBuffer(n)
			if err != nil || sendBuffer(c, b) != nil {
				return
			}
		}
	})
}

// reads has c read until it fails, and counts the bytes.
func reads(all *sync.WaitGroup, c *Conn, got *atomic.Int64) {
	all.Go(func() {
		for b := make([]byte, 1<<20); ; {
			n, err := c.Read(b)
			got.Add(int64(n))
			if err != nil {
				return
			}
		}
	})
}

// beats brings both sides heartbeats for d, or until one is lost, and returns the longest time without growth of got.
func (l *link) beats(every, d time.Duration, got *atomic.Int64) (longest time.Duration) {
	last, at := got.Load(), time.Now()
	for i := range int(2 * d / every) {
		time.Sleep(every / 2)
		if i%2 == 0 {
			l.a.Heartbeat(l.b.Sent())
			l.b.Heartbeat(l.a.Sent())
		}
		if n := got.Load(); n != last {
			longest, last, at = max(longest, time.Since(at)), n, time.Now()
		}
		if l.a.lost() || l.b.lost() {
			break
		}
	}
	return longest
}

// TestNotStarvedOnSlowPath: on a thin path, small writes wait for slots for longer than DeadAfter,
// since slots come only once the large writes before them have landed. Nobody is ended for that.
func TestNotStarvedOnSlowPath(t *testing.T) {
	for _, tt := range []struct {
		name        string
		dead, every time.Duration // every: between heartbeats
		rate        int64
		zero        bool
	}{
		{"1s, 400 KiB/s", time.Second, 400 * time.Millisecond, 400 << 10, false},
		{"1s, 2 MiB/s", time.Second, time.Second / 3, 2 << 20, false},
		{"100ms, 2 MiB/s", 100 * time.Millisecond, 400 * time.Millisecond, 2 << 20, false},
		{"100ms, 8 MiB/s", 100 * time.Millisecond, 100 * time.Millisecond / 3, 8 << 20, false},
		{"15s, 64 KiB/s, SendBuffer", 15 * time.Second, 400 * time.Millisecond, 64 << 10, true},
		{"15s, 64 KiB/s, SendBuffer, fewer heartbeats", 15 * time.Second, 5 * time.Second, 64 << 10, true},
	} {
		onVirtualTime(t, tt.name, func(t *testing.T) {
			sim, cfg := simfabric.Config{Seed: 1, Personality: simfabric.TCP()}, Config{Spin: -1, DeadAfter: tt.dead}
			l, ends := newLinkOn(t, sim, cfg, func(e fabric.Endpoint) *thinPath { return &thinPath{Endpoint: e} })
			path := ends[0]
			var all sync.WaitGroup
			var got atomic.Int64
			c, s := l.dial(t)
			reads(&all, s, &got)
			path.rate.Store(max(8<<20, 2*tt.rate))
			for range 16 {
				c, s := l.dial(t)
				reads(&all, s, &got)
				if tt.zero {
					sends(&all, c, 1<<20)
				} else {
					writes(&all, c, 1<<20, 0)
				}
			}
			time.Sleep(time.Second)
			path.rate.Store(tt.rate)
			writes(&all, c, 100, 50*time.Millisecond)
			l.beats(tt.every, max(4*tt.dead, time.Duration(race.Fewer(60))*time.Second), &got)
			assert.NoError(t, errors.Join(l.a.why(), l.b.why()))
			l.part(t, &all) // while the path is thin: work that takes no time could go on for ever without the clock moving
		})
	}
}

// TestNewcomersBesideLostPeer: a peer that sent what does not come ends alone: newcomers show that the endpoint hears.
func TestNewcomersBesideLostPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const dead = 5 * time.Second
		cfg := Config{Spin: -1, DeadAfter: dead}
		l := newLink(t, simfabric.Config{Seed: 1, Personality: simfabric.TCP()}, cfg)
		ec := openOn(t, l.net, simfabric.TCP().Provider, cfg)
		for i := 0; !l.b.lost(); i++ {
			require.Less(t, i, 100)
			time.Sleep(dead / 20)
			if i%3 == 0 { // three times in DeadAfter, since a turn takes a tenth
				l.b.Heartbeat(l.a.Sent() + 1)
			}
			// An honest newcomer each time, whose path check goes through.
			dialer, listener := introduce(t, ec, l.eb, nil)
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			require.NoError(t, dialer.Check(ctx))
			cancel()
			time.Sleep(dead / 20) // Confirm is on its way
			if !assert.False(t, listener.lost(), "the newcomer, whose frames have come %v ago", dead/20) {
				break
			}
			listener.Lost(errGoodbye)
			dialer.Lost(errGoodbye)
		}
		assert.True(t, l.eb.Takes())
		require.NoError(t, ec.Close())
		l.end(t)
	})
}
