package engine

import "time"

const (
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
	if work := e.core.work(); work != e.work || e.core.flying > 0 || e.core.stuck() || e.joining.Load() > 0 {
		e.work, e.quiet = work, 0
	}
	after := pollEvery << min(e.quiet/pollsEach, 16)
	if after < pollIdle {
		e.quiet++
	}
	after = min(after, pollIdle)
	e.slow.Store(after > pollEvery)
	e.ticking.Store(true)
	e.timer.Reset(after)
}

// work counts what has come and gone.
func (c *core) work() uint64 { return c.stats.Posted + c.stats.Reaped }
