package bootstrap

import (
	"bytes"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/seed202c38ff/fabricnet/framing"
)

func heartbeats(n int) []byte { return bytes.Repeat(framing.AppendHeartbeat(nil, 0), n) }

// ended returns why the session is over, nil if it is not.
func (s *Session) ended() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cause
}

// TestFloodOfHeartbeats: heartbeats that come without a pause end the session soon, and until then
// the Handler is told of few of them.
func TestFloodOfHeartbeats(t *testing.T) {
	for name, size := range map[string]int{"many at once": 1 << 16, "one by one": 1} {
		t.Run(name, func(t *testing.T) {
			dnc, lnc := loopback(t)
			d, _ := sessions(t, dnc, lnc, Config{}, Config{})
			h := newRecorder()
			begin := time.Now()
			d.Start(h)
			some, sent := heartbeats(size), 0
			for sent < framing.HeartbeatSize<<20 {
				n, err := lnc.Write(some)
				if sent += n; err != nil {
					break
				}
			}
			err := h.wait(t)
			assert.ErrorIs(t, err, ErrMalformed)
			assert.ErrorContains(t, err, "heartbeats")
			assert.Less(t, d.Stats().Received, uint64(framing.HeartbeatSize*2*maxBeats))
			assert.LessOrEqual(t, int(h.beats.Load()), 1+int(time.Since(begin)/leastBeat))
		})
	}
}

// beating runs f on virtual time with a session and the peer's end of its connection, and returns
// why the session has ended, nil if it has not. The peer is never silent for too long.
func beating(t *testing.T, h Handler, f func(peer net.Conn)) (ended error) {
	synctest.Test(t, func(t *testing.T) {
		dnc, lnc := net.Pipe()
		d, _ := sessions(t, dnc, lnc, Config{DeadAfter: 24 * time.Hour}, Config{})
		go drain(lnc)
		d.Start(h)
		f(lnc)
		synctest.Wait()
		ended = d.ended()
	})
	return ended
}

func TestPaceOfHeartbeats(t *testing.T) {
	t.Run("as fast as may be", func(t *testing.T) {
		h := newRecorder()
		const n = 3 * maxBeats
		err := beating(t, h, func(peer net.Conn) {
			for range n {
				time.Sleep(minHeartbeat)
				_, _ = peer.Write(heartbeats(1))
			}
		})
		assert.EqualValues(t, n, h.beats.Load())
		assert.NoError(t, err)
	})
	t.Run("faster for a while", func(t *testing.T) {
		h := newRecorder()
		err := beating(t, h, func(peer net.Conn) {
			for range maxBeats / 2 {
				time.Sleep(minHeartbeat / 10)
				_, _ = peer.Write(heartbeats(1))
			}
		})
		assert.LessOrEqual(t, int(h.beats.Load()), 1+int(maxBeats/2*(minHeartbeat/10)/leastBeat))
		assert.NoError(t, err)
	})
	t.Run("faster for long", func(t *testing.T) {
		h := newRecorder()
		err := beating(t, h, func(peer net.Conn) {
			for range 2 * maxBeats {
				time.Sleep(minHeartbeat / 10)
				_, _ = peer.Write(heartbeats(1))
			}
		})
		assert.ErrorIs(t, err, ErrMalformed)
	})
	t.Run("behind a path that lets few through", func(t *testing.T) {
		h := newRecorder()
		err := beating(t, h, func(peer net.Conn) {
			for range 60 {
				time.Sleep(time.Second)
				_, _ = peer.Write(heartbeats(1))
			}
			_, _ = peer.Write(heartbeats(60 * int(time.Second/minHeartbeat)))
		})
		assert.NoError(t, err)
	})
}

// pausing is a recorder that does not return from the first Heartbeat for a while.
type pausing struct {
	*recorder
	pause time.Duration
}

func (p *pausing) Heartbeat(sent uint32) {
	p.recorder.Heartbeat(sent)
	time.Sleep(p.pause)
	p.pause = 0
}

// TestHeartbeatsPileUp: what a peer sends in order comes all at once if this process was stopped.
func TestHeartbeatsPileUp(t *testing.T) {
	const pause = 8 * time.Hour
	h := &pausing{newRecorder(), pause}
	err := beating(t, h, func(peer net.Conn) {
		_, _ = peer.Write(heartbeats(1))
		_, _ = peer.Write(heartbeats(int(pause / minHeartbeat)))
	})
	assert.NoError(t, err)
}
