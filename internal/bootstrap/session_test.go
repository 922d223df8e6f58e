package bootstrap

import (
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/framing"
)

// sessions runs a handshake, and returns the sessions at both ends.
func sessions(t *testing.T, dnc, lnc net.Conn, dcfg, lcfg Config) (d, l *Session) {
	t.Helper()
	return sessionsFor(t, "tcp", dnc, lnc, dcfg, lcfg)
}

func sessionsFor(t *testing.T, provider string, dnc, lnc net.Conn, dcfg, lcfg Config) (d, l *Session) {
	t.Helper()
	dr, lr := meet(t, dnc, lnc, dcfg, lcfg, newBinder(offer(provider)), newBinder(offer(provider)))
	require.NoError(t, dr.err)
	require.NoError(t, lr.err)
	return dr.s, lr.s
}

func TestPageAndGoodbye(t *testing.T) {
	dnc, lnc := loopback(t)
	d, l := sessionsFor(t, "shm", dnc, lnc, Config{}, Config{})
	dh, lh := newRecorder(), newRecorder()
	d.Start(dh)
	l.Start(lh)
	looked, rung := make(chan struct{}, 1), make(chan error)
	go func() {
		looks := 0
		rung <- l.Page().Doorbell().Watcher.Sleep(func() bool {
			if looks++; looks == 1 {
				looked <- struct{}{}
			}
			return looks > 1
		})
	}()
	<-looked
	d.Page().ring(false)
	require.NoError(t, <-rung)
	assert.Zero(t, d.Stats(), "the connection is not the doorbell")

	require.NoError(t, d.Close())
	assert.ErrorIs(t, dh.wait(t), net.ErrClosed)
	assert.ErrorIs(t, lh.wait(t), ErrGoodbye)
	d.Page().ring(false) // does nothing
	require.NoError(t, l.Close())
	require.NoError(t, l.Close())
	assert.Empty(t, dh.ended, "Ended is called once")
	assert.Empty(t, lh.ended, "Ended is called once")
}

func TestHeartbeat(t *testing.T) {
	quick := Config{Heartbeat: time.Second, DeadAfter: 3 * time.Second}
	t.Run("keeps an idle session up", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			dnc, lnc := net.Pipe()
			d, l := sessions(t, dnc, lnc, quick, quick)
			dh, lh := newRecorder(), newRecorder()
			d.Start(dh)
			l.Start(lh)
			time.Sleep(time.Minute)
			isOften(t, 60, d)
			isOften(t, 60, l)
			assert.EqualValues(t, l.Stats().Sent/framing.HeartbeatSize, dh.beats.Load())
			assert.Equal(t, lh.asked.Load(), dh.told.Load(), "each says what was sent by then")
			assert.Equal(t, dh.asked.Load(), lh.told.Load())
			assert.Empty(t, dh.ended)
			assert.Empty(t, lh.ended)
		})
	})
	t.Run("follows the peer that has less patience", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			dnc, lnc := net.Pipe()
			d, l := sessions(t, dnc, lnc, Config{DeadAfter: time.Second}, Config{})
			dh, lh := newRecorder(), newRecorder()
			d.Start(dh)
			l.Start(lh)
			time.Sleep(time.Minute)
			assert.Empty(t, dh.ended)
			assert.Empty(t, lh.ended)
			isOften(t, 180, l) // three a second
			isOften(t, 12, d)
		})
	})
	t.Run("misses a silent peer", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			dnc, lnc := net.Pipe()
			d, _ := sessions(t, dnc, lnc, quick, quick)
			go drain(lnc) // reads, but sends nothing
			h := newRecorder()
			begin := time.Now()
			d.Start(h)
			err := h.wait(t)
			assert.ErrorIs(t, err, ErrHeartbeat)
			isTimeout(t, err)
			silent := time.Since(begin)
			assert.GreaterOrEqual(t, silent, quick.DeadAfter)
			assert.LessOrEqual(t, silent, quick.DeadAfter+2*grain(quick.DeadAfter/3))
		})
	})
	t.Run("misses a peer that takes nothing", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			dnc, lnc := net.Pipe()
			d, l := sessions(t, dnc, lnc, Config{}, Config{})
			h := newRecorder()
			d.Start(h)
			begin := time.Now()
			assert.ErrorIs(t, h.wait(t), ErrHeartbeat)
			assert.GreaterOrEqual(t, time.Since(begin), DefaultHeartbeat/2-grain(DefaultHeartbeat)+sendTimeout)
			assert.LessOrEqual(t, time.Since(begin), DefaultHeartbeat+sendTimeout+2*grain(DefaultHeartbeat))
			_ = l
		})
	})
}

// isOften checks that a session has sent at least so many heartbeats, and at most a 16th more: they
// are sent early, at times that sessions have in common.
func isOften(t *testing.T, least int, s *Session) {
	t.Helper()
	sent := float64(s.Stats().Sent / framing.HeartbeatSize)
	assert.GreaterOrEqual(t, sent, float64(least))
	assert.LessOrEqual(t, sent, float64(least)*17/16+1)
}

func TestSessionEnds(t *testing.T) {
	reject, err := framing.AppendMessage(nil, framing.KindReject, rejectOf(ErrTooManyPeers))
	require.NoError(t, err)
	tests := []struct {
		name      string
		do        func(peer net.Conn)
		want      error
		rejection error
	}{
		{"the peer dies", func(p net.Conn) { p.Close() }, io.ErrUnexpectedEOF, nil},
		{"an unknown signal", func(p net.Conn) { _, _ = p.Write([]byte{1, 0, 0, 0, 0, 99}) }, ErrMalformed, nil},
		{"a goodbye and more", func(p net.Conn) { _, _ = p.Write([]byte{2, 3, 99}) }, ErrGoodbye, nil},
		{"a goodbye, and why", func(p net.Conn) { _, _ = p.Write(append([]byte{1, 2, 2, 2, 2, 2}, reject...)) }, ErrGoodbye, ErrTooManyPeers},
		{"a goodbye, and why in pieces", func(p net.Conn) {
			for _, b := range append([]byte{2}, reject...) {
				_, _ = p.Write([]byte{b})
			}
		}, ErrGoodbye, ErrTooManyPeers},
		{"a goodbye, and why in part", func(p net.Conn) { _, _ = p.Write(append([]byte{2}, reject[:9]...)) }, ErrGoodbye, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dnc, lnc := loopback(t)
			d, _ := sessions(t, dnc, lnc, Config{}, Config{})
			h := newRecorder()
			d.Start(h)
			tt.do(lnc)
			assert.ErrorIs(t, h.wait(t), tt.want)
			assert.ErrorIs(t, d.Rejection(), tt.rejection)
			_, err := dnc.Write([]byte{2})
			assert.ErrorIs(t, err, net.ErrClosed, "the connection is closed before Ended")
		})
	}
	t.Run("a reset", func(t *testing.T) {
		dnc, lnc := loopback(t)
		d, _ := sessions(t, dnc, lnc, Config{}, Config{})
		h := newRecorder()
		d.Start(h)
		require.NoError(t, lnc.(*net.TCPConn).SetLinger(0))
		lnc.Close()
		assert.ErrorContains(t, h.wait(t), "reset")
	})
}

// closer closes its session from within Ended.
type closer struct {
	s     *Session
	ended chan error
}

func (c *closer) Sent() uint32     { return 0 }
func (c *closer) Heartbeat(uint32) {}
func (c *closer) Ended(_ error, rest net.Conn) {
	closeRest(rest)
	c.ended <- c.s.Close()
}

func TestCloseFromEnded(t *testing.T) {
	for _, local := range []bool{false, true} {
		dnc, lnc := loopback(t)
		d, l := sessions(t, dnc, lnc, Config{}, Config{})
		c := &closer{d, make(chan error, 1)}
		d.Start(c)
		if local {
			require.NoError(t, d.Close())
		} else {
			require.NoError(t, l.Close())
		}
		assert.NoError(t, <-c.ended)
	}
}

func TestStartAfterClose(t *testing.T) {
	dnc, lnc := loopback(t)
	d, _ := sessions(t, dnc, lnc, Config{}, Config{})
	require.NoError(t, d.Close())
	h := newRecorder()
	d.Start(h)
	assert.ErrorIs(t, h.wait(t), net.ErrClosed)
}

func TestSessionConcurrently(t *testing.T) {
	dnc, lnc := loopback(t)
	d, l := sessionsFor(t, "shm", dnc, lnc, Config{Heartbeat: time.Millisecond}, Config{Heartbeat: time.Millisecond})
	dh, lh := &counter{}, &counter{}
	d.Start(dh)
	l.Start(lh)
	var wg sync.WaitGroup
	for _, s := range []*Session{d, l} {
		for range 4 {
			wg.Go(func() {
				for range 200 {
					s.Page().ring(false)
					s.Stats()
				}
			})
		}
	}
	wg.Wait()
	for _, s := range []*Session{d, l} {
		for range 2 {
			wg.Go(func() { assert.NoError(t, s.Close()) })
		}
	}
	wg.Wait()
	once := func() bool { return dh.endings() == 1 && lh.endings() == 1 }
	assert.Eventually(t, once, 10*time.Second, time.Millisecond, "Ended is called once")
}

type counter struct {
	mu    sync.Mutex
	ended int
}

func (c *counter) Sent() uint32 { return 0 }

func (c *counter) Heartbeat(uint32) {}

func (c *counter) Ended(_ error, rest net.Conn) {
	closeRest(rest)
	c.mu.Lock()
	c.ended++
	c.mu.Unlock()
}

func (c *counter) endings() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ended
}

func TestSignals(t *testing.T) {
	dnc, lnc := net.Pipe()
	d, l := sessions(t, dnc, lnc, Config{}, Config{})
	d.heartbeat()
	h := newRecorder()
	h.asked.Store(6)
	sent := make(chan []byte)
	go func() {
		all, _ := io.ReadAll(lnc)
		sent <- all
	}()
	d.Start(h)
	d.heartbeat()
	require.NoError(t, d.Close())
	assert.Equal(t, []byte{byte(framing.SignalHeartbeat), 7, 0, 0, 0, byte(framing.SignalGoodbye)}, <-sent, "none before Start")
	_ = l
}

// TestHeartbeatInPieces: a heartbeat may come in any pieces, and counts once all of it is there.
func TestHeartbeatInPieces(t *testing.T) {
	dnc, lnc := net.Pipe()
	d, _ := sessions(t, dnc, lnc, Config{}, Config{})
	go drain(lnc)
	h := newRecorder()
	d.Start(h)
	for _, b := range framing.AppendHeartbeat(nil, 1<<24+9) {
		assert.Zero(t, h.beats.Load())
		_, err := lnc.Write([]byte{b})
		require.NoError(t, err)
	}
	_, err := lnc.Write(append(heartbeats(1), byte(framing.SignalGoodbye)))
	require.NoError(t, err)
	assert.ErrorIs(t, h.wait(t), ErrGoodbye)
	assert.EqualValues(t, 1, h.beats.Load())
	assert.EqualValues(t, 1<<24+9, h.told.Load())
}
