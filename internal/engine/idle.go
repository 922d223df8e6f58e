package engine

import "time"

const (
	// pollJoin is how often an endpoint without anything to wait on is polled at first while
	// a peer comes up: each step of a handshake would wait for pollEvery, and all of them
	// are 2.5 of the 22 ms of a first dial over shm. A peer that says nothing gets pollEvery.
	pollJoin = pollEvery / 5
	// pollIdle is how seldom an endpoint without anything to wait on is polled once nothing
	// has come or gone for a second: after each pollsEach polls the time between them
	// doubles.
	pollIdle  = 16 * time.Millisecond
	pollsEach = 64
)

// pollLater has tick run again where only that brings progress: soon, or less and less
// often. It sets the timer under the lock, so that who posts finds it slow afterwards.
func (e *Endpoint) pollLater() {
	e.mu.Lock()
	defer e.mu.Unlock()
	after, most := pollEvery, pollIdle
	joining := e.joining.Load() > 0
	if joining {
		after, most = pollJoin, pollEvery
	}
	if work := e.core.work(); work != e.work || !joining && (e.core.flying > 0 || e.core.stuck()) {
		e.work, e.quiet = work, 0
	}
	after = min(after<<min(e.quiet/pollsEach, 16), most)
	if after < pollIdle {
		e.quiet++
	}
	e.slow.Store(after > pollEvery)
	e.ticking.Store(true)
	e.timer.Reset(after)
}

// work counts what has come and gone.
func (c *core) work() uint64 { return c.stats.Posted + c.stats.Reaped }
