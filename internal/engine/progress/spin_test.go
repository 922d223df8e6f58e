package progress

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
)

// TestPollsWhereCallsAreSlow: where calls are slow, as in an emulated machine, a goroutine polls a
// number of times, however long that takes.
func TestPollsWhereCallsAreSlow(t *testing.T) {
	q := &fakeQueue{slow: 10 * time.Microsecond}
	p := New(Config{Queue: q, Spin: 200 * time.Microsecond})
	p.SetDoorbell(newDoorbell())
	p.Start()
	defer p.Close()
	w := NewWaiter()
	polls := func() int32 {
		require.Eventually(t, func() bool { return Spinners() == 0 }, time.Minute, time.Millisecond)
		before, parks, ended := q.polls.Load(), p.parks.Load(), make(chan struct{})
		w.Prepare()
		go func() {
			p.Wait(&w, "test")
			close(ended)
		}()
		require.Eventually(t, func() bool { return p.parks.Load() > parks }, time.Minute, time.Millisecond)
		n := q.polls.Load() - before
		w.Signal()
		<-ended
		return n
	}
	var most int32
	for i := 0; i < 50 && most < spinPolls; i++ {
		most = max(most, polls())
	}
	assert.GreaterOrEqual(t, most, int32(spinPolls))
}

// TestExpect: while a peer comes up that is about to send something, the background goroutine polls
// for it longer than for others, unless polling is switched off.
func TestExpect(t *testing.T) {
	for name, tt := range map[string]struct {
		waiter fabric.Waiter
		spin   time.Duration
		least  int32
	}{
		"nothing to wait on":           {nil, LearntTime, 2 * spinPolls},
		"a wait fd":                    {newFD(), LearntTime, 2 * spinPolls},
		"nothing to wait on, no spins": {nil, -1, 0},
		"a wait fd, no spins":          {newFD(), -1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			q := &fakeQueue{slow: 2 * time.Microsecond}
			p := New(Config{Queue: q, Waiter: tt.waiter, Spin: tt.spin})
			p.Start()
			defer p.Close()
			p.Join()
			defer p.Joined()
			if tt.least > 0 {
				require.Eventually(t, func() bool {
					before := q.polls.Load()
					p.Expect()
					time.Sleep(joinTime)
					return q.polls.Load()-before > tt.least
				}, 10*time.Second, time.Millisecond)
				return
			}
			before := q.polls.Load()
			p.Expect()
			time.Sleep(5 * joinTime)
			assert.Less(t, q.polls.Load()-before, int32(spinPolls))
		})
	}
}
