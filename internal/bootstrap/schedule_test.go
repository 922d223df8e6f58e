package bootstrap

import (
	"crypto/tls"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/framing"
)

// crowd is a number of sessions on one Schedule.
type crowd struct {
	schedule Schedule
	sessions []*Session

	mu    sync.Mutex           // guards what follows
	turns map[time.Time]bool   // the times at which sessions were woken
	beats map[time.Time]int    // how many heartbeats arrived at each time
	waits []func(t *testing.T) // check that they arrived in time
}

func newCrowd() *crowd {
	return &crowd{turns: make(map[time.Time]bool), beats: make(map[time.Time]int)}
}

// join adds a session whose peer takes silence, in milliseconds, for death (0: the default), and
// returns the peer's end.
func (c *crowd) join(cfg Config, silence uint32) (s *Session, peer net.Conn) {
	nc, peer := net.Pipe()
	cfg.Schedule = &c.schedule
	s = newSession(&handshake{nc: nc, raw: nc, cfg: cfg.withDefaults(), remote: framing.Hello{Silence: silence}}, nil)
	s.live.turn = func(now time.Duration) time.Duration {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.turns[time.Now()] = true
		return s.turn(now)
	}
	c.sessions = append(c.sessions, s)
	return s, peer
}

func (c *crowd) close(t *testing.T) {
	t.Helper()
	for _, s := range c.sessions {
		assert.NoError(t, s.Close())
	}
	for _, wait := range c.waits {
		wait(t)
	}
	time.Sleep(DefaultHeartbeat) // until every say has noticed that its session is over
	synctest.Wait()
	c.schedule.mu.Lock()
	defer c.schedule.mu.Unlock()
	assert.Empty(t, c.schedule.queue)
	assert.False(t, c.schedule.timer.Stop(), "an idle process has no timer")
}

// say sends heartbeats until the session ends.
func say(peer net.Conn, every time.Duration) {
	for {
		if _, err := peer.Write(heartbeats(1)); err != nil {
			return
		}
		time.Sleep(every)
	}
}

// live adds a session whose peer sends heartbeats and reads them as it should.
func (c *crowd) live(silence uint32, h Handler) {
	s, peer := c.join(Config{}, silence)
	every := DefaultHeartbeat
	if silence > 0 {
		every = min(every, max(time.Duration(silence)*time.Millisecond/3, minHeartbeat))
	}
	longest := make(chan time.Duration, 1)
	c.waits = append(c.waits, func(t *testing.T) { assert.LessOrEqual(t, <-longest, every) })
	s.Start(h)
	go say(peer, DefaultHeartbeat)
	go func() {
		var most time.Duration
		for last := time.Now(); ; last = time.Now() {
			if _, err := io.ReadFull(peer, make([]byte, framing.HeartbeatSize)); err != nil {
				longest <- most
				return
			}
			most = max(most, time.Since(last))
			c.mu.Lock()
			c.beats[time.Now()]++
			c.mu.Unlock()
		}
	}()
}

// TestManySessions: a thousand sessions together wake a process only a few times a second, and
// each peer gets its heartbeats in time, even if one asks for more of them.
func TestManySessions(t *testing.T) {
	const watch = time.Minute
	for name, tt := range map[string]struct {
		often uint32 // the silence that one of the peers asks for, in milliseconds; 0: the default
		most  int    // wake-ups a second
	}{
		"all patient":     {0, 8},
		"one in a hurry":  {100, 8 + 32},
		"one in no hurry": {600_000, 8},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, h := newCrowd(), new(counter)
				c.live(tt.often, h)
				for range 999 {
					c.live(15_000, h)
				}
				time.Sleep(watch)
				c.mu.Lock()
				assert.LessOrEqual(t, len(c.turns), tt.most*int(watch/time.Second))
				assert.Less(t, slices.Max(slices.Collect(maps.Values(c.beats))), len(c.sessions)/4, "they do not all come at once")
				c.mu.Unlock()
				assert.Zero(t, h.endings())
				c.close(t)
			})
		})
	}
}

// TestStuckSession: a peer that reads nothing does not hold up the heartbeats of others, and its
// session ends.
func TestStuckSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, healthy, stuck := newCrowd(), new(counter), newRecorder()
		for range 10 {
			c.live(60, healthy) // the shortest that is possible
		}
		s, peer := c.join(Config{}, 60)
		go say(peer, DefaultHeartbeat)
		begin := time.Now()
		s.Start(stuck)
		assert.ErrorIs(t, stuck.wait(t), ErrHeartbeat)
		assert.InDelta(t, sendTimeout, time.Since(begin), float64(sendTimeout)/10)
		time.Sleep(time.Minute)
		assert.Zero(t, healthy.endings())
		c.close(t)
	})
}

// TestStuckOverTCP: the same when this side's socket buffer is full, with TLS and without.
func TestStuckOverTCP(t *testing.T) {
	cert, pool := newCertificate(t, "server")
	for name, configs := range map[string][2]*tls.Config{
		"clear": {},
		"TLS":   {{RootCAs: pool, ServerName: "server"}, {Certificates: []tls.Certificate{cert}}},
	} {
		t.Run(name, func(t *testing.T) {
			schedule := new(Schedule)
			meet := func() (d, l *Session, h *recorder) {
				dnc, lnc := loopback(t)
				d, l = sessions(t, dnc, lnc, Config{Heartbeat: 5 * time.Millisecond, TLS: configs[0], Schedule: schedule}, Config{TLS: configs[1]})
				return d, l, newRecorder()
			}
			wd, wl, wh := meet()
			wl.Start(newRecorder())
			d, l, h := meet()
			go say(l.nc, 50*time.Millisecond) // but it reads nothing
			fill(t, d.raw)
			d.Start(h)
			before := time.Now()
			wd.Start(wh)
			assert.ErrorIs(t, h.wait(t), ErrHeartbeat)
			assert.Less(t, time.Since(before), DefaultDeadAfter)
			assert.Greater(t, wd.Stats().Sent, uint64(10), "others' heartbeats")
			assert.Empty(t, wh.ended)
		})
	}
}

// fill writes until no more is taken. It tries three times, since the kernel makes room now and then.
func fill(t *testing.T, nc net.Conn) {
	t.Helper()
	for quiet := 0; quiet < 3; {
		require.NoError(t, nc.SetWriteDeadline(time.Now().Add(100*time.Millisecond)))
		n, err := io.Copy(nc, neverEnding{})
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		if quiet++; n > 0 {
			quiet = 0
		}
	}
	require.NoError(t, nc.SetWriteDeadline(time.Time{}))
}

type neverEnding struct{}

func (neverEnding) Read(b []byte) (int, error) { return len(b), nil }

// TestWatch: a peer counts as missing once it has been silent for as long as is allowed, unless this
// process may have been stopped meanwhile.
func TestWatch(t *testing.T) {
	type look struct {
		since, now time.Duration
		over       bool
	}
	for name, looks := range map[string][]look{
		"silent from the first":     {{0, 10, false}, {0, 20, true}},
		"silent later":              {{0, 10, false}, {12, 20, false}, {12, 22, false}, {12, 32, true}},
		"now and then":              {{9, 10, false}, {18, 19, false}, {27, 28, false}, {27, 37, false}, {40, 47, false}},
		"after a pause":             {{0, 100, false}, {101, 110, false}, {101, 111, false}},
		"after a pause, and silent": {{0, 100, false}, {0, 110, true}},
	} {
		t.Run(name, func(t *testing.T) {
			w := watch{half: 10}
			for _, l := range looks {
				assert.Equal(t, l.over, w.look(l.since, l.now), "%+v", l)
				assert.Greater(t, w.due, l.now)
				assert.LessOrEqual(t, w.due, l.now+w.half)
			}
		})
	}
}

// TestGrain: sessions with different intervals have times in common: a grain is a multiple of each
// shorter one, and an interval has 16 to 32 of its own.
func TestGrain(t *testing.T) {
	var longer time.Duration
	for _, interval := range []time.Duration{24 * time.Hour, time.Hour + 1, 5 * time.Second, time.Second / 3, minHeartbeat, 2 * time.Millisecond} {
		g := grain(interval)
		assert.LessOrEqual(t, g, interval/16)
		assert.Greater(t, 2*g, interval/16)
		assert.Zero(t, longer%g, interval)
		longer = g
	}
	assert.Zero(t, minHeartbeat%grain(minHeartbeat), "never more often than that")
	assert.Zero(t, longer%grain(1))
}
