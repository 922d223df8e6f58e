package bootstrap

import (
	"container/heap"
	"math"
	"sync"
	"time"
)

// Schedule wakes sessions when they have something to do: one timer serves them all, where
// each would have had three, and the runtime wakes up for a timer that was put off, too.
// The zero value is ready, and all methods may be called concurrently.
//
// The timer is set to the time of the first entry, or to an earlier one, and stopped while
// there is none. Sessions choose times that many have in common (grain), so that all of a
// time are served by one wake-up, of which there are at most 32 in the shortest interval
// of any.
type Schedule struct {
	begin sync.Once
	start time.Time // what times are counted from, set by begin

	mu    sync.Mutex // a leaf; guards what follows and the entries
	queue queue
	timer *time.Timer   // nil before it is needed
	set   time.Duration // what it is set to, never while it is stopped
}

// entry is one session's.
type entry struct {
	due time.Duration
	at  int // in the queue, -1 if it is not there
	// turn does what is due, and returns when it is to be called next. It is called with
	// the Schedule locked, and so starts a goroutine for all that takes time, or a lock.
	turn func(now time.Duration) (due time.Duration)
}

// never is a time that does not come.
const never = math.MaxInt64

// now is the time since it was asked for first.
func (s *Schedule) now() time.Duration {
	s.begin.Do(func() { s.start = time.Now() })
	return time.Since(s.start)
}

// add has e's turn called when it is due.
func (s *Schedule) add(e *entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	heap.Push(&s.queue, e)
	s.wake()
}

// remove has e's turn called no more: what it has started may still go on. An entry that
// is not there, or not any more, is none of its business.
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

// run is the timer's.
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

// wake sets the timer, unless it is early enough: one that is too early finds nothing to
// do, once.
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

// grain is what the times of a session are multiples of that has something to do each
// interval: a 32nd to a 16th of that, and leastGrain at least. Each grain is half or twice
// the next, so that the times of sessions with different intervals meet as well.
func grain(interval time.Duration) time.Duration {
	g := leastGrain
	for 2*g <= interval/16 {
		g *= 2
	}
	return g
}

// leastGrain is 78 microseconds; minHeartbeat is a multiple of its grain, to be kept to.
const leastGrain = minHeartbeat / 256

// queue is a heap, the first entry being the next.
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
