package bootstrap

import (
	"container/heap"
	"math"
	"sync"
	"time"
)

// Schedule wakes sessions when they have something to do. One timer serves them all, where
// each would otherwise have three; and the runtime wakes up even for a timer that has been put
// off. The zero value is ready, and all methods may be called concurrently.
//
// The timer is set to the time of the first entry, or to an earlier time, and stopped while
// there is no entry. Sessions choose times that many of them have in common (grain), so that all
// that are due at one time are served by one wake-up. There are at most 32 wake-ups in the
// shortest interval of any session.
type Schedule struct {
	begin sync.Once
	start time.Time // from which times are counted; set by begin

	mu    sync.Mutex // no lock is taken under it; guards what follows and the entries
	queue queue
	timer *time.Timer   // nil until it is needed
	set   time.Duration // the time for which it is set, or never if it is stopped
}

// entry is one session's place in the Schedule.
type entry struct {
	due time.Duration
	at  int // index in the queue, -1 if it is not there
	// turn does what is due, and returns when to call it next. It is called with the
	// Schedule locked, so it starts a goroutine for everything that takes time, or a lock.
	turn func(now time.Duration) (due time.Duration)
}

// never is a time that never comes.
const never = math.MaxInt64

// now returns the time since it was first called.
func (s *Schedule) now() time.Duration {
	s.begin.Do(func() { s.start = time.Now() })
	return time.Since(s.start)
}

// add makes e's turn be called when it is due.
func (s *Schedule) add(e *entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	heap.Push(&s.queue, e)
	s.wake()
}

// remove makes e's turn be called no more, though what it has started may still go on. It
// does nothing if the entry is not there, or not there any more.
func (s *Schedule) remove(e *entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.at < 0 {
		return
	}
	heap.Remove(&s.queue, e.at)
	if len(s.queue) == 0 {
		s.timer.Stop()
		s.set = never
	}
}

// run is called by the timer.
func (s *Schedule) run() {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	for s.first() <= now {
		e := s.queue[0]
		e.due = e.turn(now)
		heap.Fix(&s.queue, 0)
	}
	s.set = never
	s.wake()
}

// wake sets the timer, unless it is set early enough. If that is too early, it finds nothing
// to do, once.
func (s *Schedule) wake() {
	switch first := s.first(); {
	case s.timer == nil:
		s.set = first
		s.timer = time.AfterFunc(first-s.now(), s.run)
	case first < s.set:
		s.set = first
		s.timer.Reset(first - s.now())
	}
}

// first is when the first entry is due.
func (s *Schedule) first() time.Duration {
	if len(s.queue) == 0 {
		return never
	}
	return s.queue[0].due
}

// grain returns the time of which all the times of a session are multiples, if the session has
// something to do once in each interval: a 32nd to a 16th of the interval, and at least
// leastGrain. Each grain is half the next larger one, so that the times of sessions with different
// intervals coincide as well.
func grain(interval time.Duration) time.Duration {
	g := leastGrain
	for 2*g <= interval/16 {
		g *= 2
	}
	return g
}

// leastGrain is 78 microseconds. It makes minHeartbeat a multiple of its own grain, so that
// heartbeats are never more frequent than that.
const leastGrain = minHeartbeat / 256

// queue is a heap whose first entry is due next.
type queue []*entry

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].due < q[j].due }

func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].at, q[j].at = i, j
}

func (q *queue) Push(x any) {
	e := x.(*entry)
	e.at = len(*q)
	*q = append(*q, e)
}

func (q *queue) Pop() any {
	old := *q
	e := old[len(old)-1]
	old[len(old)-1] = nil
	*q, e.at = old[:len(old)-1], -1
	return e
}
