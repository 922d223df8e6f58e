package engine

import (
	"fmt"
	"iter"
	"runtime/debug"
	"slices"
)

// task is a call that is under way. It runs in a coroutine of its own, which
// hands over to the model wherever the call gives up the endpoint's lock.
type task struct {
	what string
	e    *modelEnd
	w    *waiter // what it waits for, nil if it may go on
	// gate, if any, must agree before the task may go on: waiting for a mutex of another task would stop the whole world.
	gate func() bool
	co   *coro
}

// coro is a coroutine, which runs one task after another.
type coro struct {
	next  func() (struct{}, bool)
	stop  func()
	yield func(struct{}) bool
	job   func()
	busy  bool
}

func (m *model) newCoro() *coro {
	if n := len(m.coros); n > 0 {
		co := m.coros[n-1]
		m.coros = m.coros[:n-1]
		return co
	}
	co := &coro{}
	co.next, co.stop = iter.Pull(func(yield func(struct{}) bool) {
		debug.SetPanicOnFault(true)
		co.yield = yield
		for {
			m.protect(co.job)
			co.busy = false
			if !yield(struct{}{}) {
				return
			}
		}
	})
	return co
}

// protect notes where a task panics, before the coroutine's stack is lost.
func (m *model) protect(job func()) {
	defer func() {
		if r := recover(); r != nil {
			m.err = fmt.Errorf("panic: %v\n%s", r, debug.Stack())
		}
	}()
	job()
}

// start begins a task and runs it until it pauses or ends.
func (m *model) start(t *task, job func()) {
	t.co = m.newCoro()
	t.co.job, t.co.busy = job, true
	m.tasks = append(m.tasks, t)
	m.resume(t)
}

func (m *model) resume(t *task) {
	m.happened()
	m.note(t.what, t.e, 0, 0)
	m.running = t
	t.co.next()
	m.running = nil
	if t.co.busy {
		return
	}
	m.coros = append(m.coros, t.co)
	m.tasks = without(m.tasks, slices.Index(m.tasks, t))
}

// without returns list without what is at i, in whose place comes the last.
func without[T any](list []T, i int) []T {
	last := len(list) - 1
	list[i] = list[last]
	return list[:last]
}

// pause hands over to the model from a call that has given up the lock.
func (m *model) pause(w *waiter) {
	t := m.running
	switch {
	case t == nil: // the model's own call
		return
	case t.gate != nil && !t.gate(): // it must stop here
	case w == nil && !m.oneIn(3) && (t.e.s == nil || !t.e.s.copying || m.oneIn(2)), w != nil && w.Signalled():
		return
	}
	t.w = w
	t.co.yield(struct{}{})
	t.w = nil
}

func (t *task) runnable() bool {
	return !t.e.h.frozen() && (t.w == nil || t.w.Signalled()) && (t.gate == nil || t.gate())
}

// resumeAny resumes one of the tasks that can go on, and reports whether there was one.
func (m *model) resumeAny() bool {
	n := len(m.tasks)
	if n == 0 {
		return false
	}
	for i, first := 0, m.rng.IntN(n); i < n; i++ {
		if t := m.tasks[(first+i)%n]; t.runnable() {
			m.resume(t)
			return true
		}
	}
	return false
}
