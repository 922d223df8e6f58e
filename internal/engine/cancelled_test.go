package engine

import (
	"errors"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
)

var errCancelled = errors.New("the receive was cancelled")

// cancelling is an endpoint on which strangers, while they are active, cancel every receive that is
// posted, as happens when connections end in the middle of a message.
type cancelling struct {
	fabric.Endpoint
	mu        sync.Mutex
	strangers bool
	held      []uint32 // tags of receives that are to be cancelled
	cancelled int
}

func (e *cancelling) at(it bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.strangers = it
}

func (e *cancelling) Exchange(ops []fabric.Op, done []fabric.Completion) (posted, reaped int, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for ; reaped < len(done) && len(e.held) > 0; reaped++ {
		done[reaped] = fabric.Completion{Kind: fabric.Recv, Tag: e.held[0], Err: errCancelled}
		e.held = e.held[1:]
		e.cancelled++
	}
	if reaped > 0 {
		return 0, reaped, nil
	}
	if e.strangers && slices.ContainsFunc(ops, func(o fabric.Op) bool { return o.Kind == fabric.Recv }) {
		for posted < len(ops) && ops[posted].Kind == fabric.Recv {
			e.held = append(e.held, ops[posted].Tag)
			posted++
		}
		if posted > 0 { // a provider signals its wait object for these, too
			w := e.Waiter()
			w.Bell().Wake()
			w.Watcher().Wake()
		}
		return posted, 0, nil
	}
	return e.Endpoint.Exchange(ops, done)
}

// TestCancelledReceives: strangers that cancel receives, again and again, end neither the endpoint
// nor its conns, and cost no more than a bounded number of new receives a second. The conns end
// only if nothing else has arrived for DeadAfter.
func TestCancelledReceives(t *testing.T) {
	for name, forever := range map[string]bool{"for a while": false, "for ever": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sim, cfg := simfabric.Config{Seed: 1, Personality: simfabric.TCP()}, Config{Spin: -1, DeadAfter: 5 * time.Second}
				l, ends := newLinkOn(t, sim, cfg, func(e fabric.Endpoint) *cancelling { return &cancelling{Endpoint: e} })
				c, s := l.dial(t)
				carry(t, c, s, 1)
				ends[1].at(true)
				const second = 4
				for range second * 2 { // each message uses up a receive, and strangers cancel the one posted for it
					carry(t, c, s, 1)
					time.Sleep(time.Second / 2)
				}
				posted := l.eb.Stats().CQErrors
				assert.NotZero(t, posted)
				assert.LessOrEqual(t, posted, uint64((second+2)*l.eb.core.rx.Len()))
				if forever {
					time.Sleep(2 * cfg.DeadAfter)
					_, err := s.Read(make([]byte, 1))
					require.ErrorIs(t, err, syscall.ECONNRESET)
				} else {
					ends[1].at(false)
					time.Sleep(2 * choreTime)
					for range 2 * l.eb.core.rx.Len() { // all receives are there again
						carry(t, c, s, 1)
					}
				}
				l.end(t)
			})
		})
	}
}
