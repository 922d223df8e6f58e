package progress

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

// TestDrainLate: on a busy host, Drain's time may be over before the owner has had a processor.
// What has arrived is dispatched all the same.
func TestDrainLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := new(fakeQueue)
		p := New(Config{Queue: q, Spin: -1})
		p.SetDoorbell(newDoorbell())
		p.Start()
		defer p.Close()
		q.arrived.Store(1)
		assert.True(t, p.Acquire())
		go func() {
			time.Sleep(100 * time.Millisecond)
			p.Release()
		}()
		p.Drain(time.Millisecond)
		assert.Zero(t, q.arrived.Load())
	})
}

// TestDrainEnds: Drain ends even if there is always something, or if an owner does not leave. It
// ends at once if the queue is retired.
func TestDrainEnds(t *testing.T) {
	for name, c := range map[string]struct {
		own          func(p *Poller)
		takes, slack time.Duration
		polls        bool
	}{
		"busy":    {func(*Poller) {}, time.Millisecond, 10 * time.Microsecond, true}, // others poll, too
		"owned":   {func(p *Poller) { p.Acquire() }, drainTurn, 0, false},
		"retired": {(*Poller).Retire, 0, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := new(fakeQueue)
				q.reaped = func() {
					q.arrived.Store(1)
					time.Sleep(time.Microsecond)
				}
				q.reaped()
				p := New(Config{Queue: q, Spin: -1})
				p.SetDoorbell(newDoorbell())
				p.Start()
				defer p.Close()
				c.own(p)
				start := time.Now()
				p.Drain(time.Millisecond)
				assert.InDelta(t, c.takes, time.Since(start), float64(c.slack))
				assert.Equal(t, c.polls, q.polls.Load() > 0)
				if name == "owned" {
					p.Release()
				}
			})
		})
	}
}
