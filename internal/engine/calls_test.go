package engine

import (
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

func isRecv(op fabric.Op) bool { return op.Kind == fabric.Recv }

func (c *counted) Exchange(ops []fabric.Op, done []fabric.Completion) (posted, reaped int, err error) {
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

// TestReceiveGoesWithTheAnswer: if nobody polls in between, a receive is posted again in the same call as the answer.
func TestReceiveGoesWithTheAnswer(t *testing.T) {
	for _, name := range []string{"shm", "tcp", "verbs"} {
		t.Run(name, func(t *testing.T) {
			l, a, b, end := countedLink(t, personalities()[name], Config{})
			pollAlone(l.ea)
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
				mustWrite(t, b, []byte("question"))
				frames, receives := state()
				for ; frames == before; frames, receives = state() {
					l.ea.poller.Poll()
					runtime.Gosched()
				}
				sends, along := end.sends.Load(), end.along.Load()
				mustWrite(t, a, []byte("answer"))
				assert.EqualValues(t, 1, end.sends.Load()-sends)
				if receives > 0 {
					waited++
					assert.EqualValues(t, 1, end.along.Load()-along)
				}
				mustRead(t, b, len("answer")) // else we might run out of credits
			}
			// In the other rounds credits came with the question: then more receives are due than may wait.
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
			near, far := l.dials(t, 7)
			near, far = append(near, a), append(far, b)
			pollAlone(l.ea)
			end.refuses.Store(true)
			for _, c := range near {
				mustWrite(t, c, []byte("at once"))
			}
			end.refuses.Store(false)
			sends := end.sends.Load()
			l.ea.poller.Poll()
			assert.EqualValues(t, 1, end.sends.Load()-sends)
			l.ea.poller.Release()
			for i, c := range far {
				mustRead(t, c, len("at once"))
				closeConns(t, near[i], c)
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
				e.core.clock = func() time.Time { looks.Add(1); return clock() }
				e.mu.Unlock()
			}
			move := func(rounds int) {
				for range rounds {
					mustWrite(t, a, make([]byte, 64))
					mustRead(t, b, 64)
				}
			}
			move(100) // until it is warm
			const rounds = 1000
			before := looks.Load()
			move(rounds)
			assert.Less(t, looks.Load()-before, int32(rounds/10)) // chores read it now and then
			closeConns(t, a, b)
		})
	}
}

// TestReceivesDoNotWaitForAnAnswer: receives do not wait for an answer that never comes: the peer gets its slots back.
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
				mustWrite(t, a, []byte("nobody reads this"))
				require.Eventually(t, func() bool {
					frames, all := posted()
					return frames > before && all
				}, 10*time.Second, time.Millisecond, "chores posts them, at the latest")
			}
			closeConns(t, a, b)
		})
	}
}
