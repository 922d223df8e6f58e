package engine

import (
	"io"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
)

// counted is an endpoint that counts the calls which cost time on a real one.
type counted struct {
	fabric.Endpoint
	sends, along atomic.Int32 // calls that post a send; those among them that post a receive too
	refuses      atomic.Bool  // takes no sends
}

func (c *counted) Exchange(ops []fabric.Op, done []fabric.Completion) (posted, reaped int, err error) {
	isRecv := func(op fabric.Op) bool { return op.Kind == fabric.Recv }
	if len(ops) > 0 && !isRecv(ops[0]) {
		if c.refuses.Load() {
			return 0, 0, nil
		}
		c.sends.Add(1)
		if slices.ContainsFunc(ops, isRecv) {
			c.along.Add(1)
		}
	}
	return c.Endpoint.Exchange(ops, done)
}

// countedLink returns the link, its conns, and the dialling side's endpoint.
func countedLink(t *testing.T, sim simfabric.Config, cfg Config) (l *link, a, b *Conn, end *counted) {
	l, ends := newLinkOn(t, sim, cfg, func(e fabric.Endpoint) *counted { return &counted{Endpoint: e} })
	a, b = l.dial(t)
	return l, a, b, ends[0]
}

// TestReceiveGoesWithTheAnswer: if nobody polls in between, a receive is posted again in the same
// call as the answer.
func TestReceiveGoesWithTheAnswer(t *testing.T) {
	for _, name := range []string{"shm", "tcp", "verbs"} {
		t.Run(name, func(t *testing.T) {
			l, a, b, end := countedLink(t, personalities()[name], Config{})
			for !l.ea.poller.Acquire() { // so that only we poll
				runtime.Gosched()
			}
			l.ea.chores.Stop() // since they post receives, too
			l.ea.choring.Store(true)
			state := func() (frames uint64, receives int) {
				l.ea.mu.Lock()
				defer l.ea.mu.Unlock()
				return l.ea.core.stats.FramesReceived, len(l.ea.core.recvs)
			}
			const rounds = 20
			waited := 0
			for range rounds {
				before, _ := state()
				_, err := b.Write([]byte("question"))
				require.NoError(t, err)
				frames, receives := state()
				for ; frames == before; frames, receives = state() {
					l.ea.poller.Poll()
					runtime.Gosched()
				}
				sends, along := end.sends.Load(), end.along.Load()
				answer := []byte("answer")
				_, err = a.Write(answer)
				require.NoError(t, err)
				assert.EqualValues(t, 1, end.sends.Load()-sends)
				if receives > 0 {
					waited++
					assert.EqualValues(t, 1, end.along.Load()-along)
				}
				_, err = io.ReadFull(b, answer) // else we might run out of credits
				require.NoError(t, err)
			}
			// In the other rounds credits came with the question: then more receives are due than
			// may wait.
			assert.GreaterOrEqual(t, waited, rounds/2)
			l.ea.choring.Store(false)
			l.ea.poller.Release()
			closeConns(t, a, b)
			l.close(t)
		})
	}
}

// TestConnsShareACall: frames that several conns have for one peer at a time leave in one call.
func TestConnsShareACall(t *testing.T) {
	for _, name := range []string{"tcp", "verbs"} { // over shm, Write waits for its frame to leave
		t.Run(name, func(t *testing.T) {
			l, a, b, end := countedLink(t, personalities()[name], Config{})
			conns := [][2]*Conn{{a, b}}
			for range 7 {
				a, b := l.dial(t)
				conns = append(conns, [2]*Conn{a, b})
			}
			for !l.ea.poller.Acquire() { // so that only we poll
				runtime.Gosched()
			}
			end.refuses.Store(true)
			for _, c := range conns {
				_, err := c[0].Write([]byte("at once"))
				require.NoError(t, err)
			}
			end.refuses.Store(false)
			sends := end.sends.Load()
			l.ea.poller.Poll()
			assert.EqualValues(t, 1, end.sends.Load()-sends)
			l.ea.poller.Release()
			for _, c := range conns {
				_, err := io.ReadFull(c[1], make([]byte, len("at once")))
				require.NoError(t, err)
				closeConns(t, c[0], c[1])
			}
			l.close(t)
		})
	}
}

// TestNoClock: the core reads no clock for small data that a warm conn writes, takes in and reads.
func TestNoClock(t *testing.T) {
	for _, name := range []string{"shm", "tcp", "verbs"} {
		t.Run(name, func(t *testing.T) {
			l, a, b := newConns(t, personalities()[name], Config{})
			var looks atomic.Int32
			for _, e := range []*Endpoint{l.ea, l.eb} {
				e.mu.Lock()
				clock := e.core.clock
				e.core.clock = func() time.Time {
					looks.Add(1)
					return clock()
				}
				e.mu.Unlock()
			}
			data := make([]byte, 64)
			round := func() {
				_, err := a.Write(data)
				require.NoError(t, err)
				_, err = io.ReadFull(b, data)
				require.NoError(t, err)
			}
			for range 100 { // until it is warm
				round()
			}
			const rounds = 1000
			before := looks.Load()
			for range rounds {
				round()
			}
			assert.Less(t, looks.Load()-before, int32(rounds/10)) // chores read it now and then
			closeConns(t, a, b)
		})
	}
}

// TestReceivesDoNotWaitForAnAnswer: receives do not wait for an answer that never comes, so the
// peer gets its slots back.
func TestReceivesDoNotWaitForAnAnswer(t *testing.T) {
	for _, name := range []string{"shm", "tcp", "verbs"} {
		t.Run(name, func(t *testing.T) {
			l, a, b := newConns(t, personalities()[name], Config{})
			posted := func() (frames uint64, all bool) {
				l.eb.mu.Lock() // without leave, which would post the receives
				defer l.eb.mu.Unlock()
				return l.eb.core.stats.FramesReceived, len(l.eb.core.recvs) == 0
			}
			for range 2 {
				before, _ := posted()
				_, err := a.Write([]byte("nobody reads this"))
				require.NoError(t, err)
				require.Eventually(t, func() bool {
					frames, all := posted()
					return frames > before && all
				}, 10*time.Second, time.Millisecond, "chores posts them, at the latest")
			}
			closeConns(t, a, b)
		})
	}
}
