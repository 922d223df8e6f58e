package progress

import (
	"flag"
	"fmt"
	"iter"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"testing"
	"time"

	"github.com/seed202c38ff/fabricnet/internal/race"
)

// The model runs a Poller with all its goroutines as coroutines, on one thread and on virtual time.
// A coroutine may be interrupted by others wherever ownership or a flag changes. The wait fd, the
// doorbell and the timers are scripted. A seed replays exactly.

var (
	seedsFlag = flag.Int("seeds", race.Fewer(1000), "how many seeds the model test runs")
	seedFlag  = flag.Uint64("seed", 0, "run only this seed of the model test")
)

func TestModel(t *testing.T) {
	first, last := uint64(1), uint64(*seedsFlag)
	if *seedFlag != 0 {
		first, last = *seedFlag, *seedFlag
	}
	for seed := first; seed <= last; seed++ {
		if m := runModel(seed); m.err != nil {
			t.Fatalf("seed %d (%+v) after %v: %v\n%s", seed, m.kind, m.now.Sub(dawn), m.err, m.dump())
		}
	}
}

// task is a goroutine, as a coroutine.
type task struct {
	name  string
	next  func() (struct{}, bool)
	stop  func()
	yield func(struct{}) bool
	until func() bool // what it waits for, nil if it may go on
}

// alarm is a timer.
type alarm struct {
	m  *model
	at time.Time // zero: it is not set
	f  func()
}

func (a *alarm) Reset(d time.Duration) bool {
	was := !a.at.IsZero()
	a.at = a.m.now.Add(max(d, 0))
	return was
}

func (a *alarm) Stop() bool {
	was := !a.at.IsZero()
	a.at = time.Time{}
	return was
}

// sim is the part of the model that knows nothing of what it runs.
type sim struct {
	rng     *rand.Rand
	now     time.Time
	tasks   []*task
	running *task
	alarms  []*alarm
	steps   int
	err     error
}

var dawn = time.Unix(1e9, 0)

func (m *sim) oneIn(n int) bool { return m.rng.IntN(n) == 0 }

func (m *sim) check(ok bool, format string, args ...any) {
	if !ok && m.err == nil {
		m.err = fmt.Errorf(format, args...)
	}
}

// step implements scheduler. Whatever runs takes time, and now and then the machine has
// something else to do.
func (m *model) step() {
	if m.running == nil { // the model's own call
		return
	}
	m.steps++
	m.now = m.now.Add(time.Duration(m.rng.IntN(200)))
	switch {
	case m.oneIn(60):
		m.sleep(time.Duration(m.rng.Int64N(int64(500 * time.Microsecond))))
	case m.oneIn(2):
		m.pause()
	}
}

type ended struct{}

func (m *sim) pause() {
	if !m.running.yield(struct{}{}) {
		panic(ended{})
	}
}

// block implements scheduler. When until returns true, it has taken what it looks for, so the
// coroutine must then go on.
func (m *sim) block(until func() bool) {
	if until() {
		return
	}
	m.running.until = until
	m.pause()
}

// start begins a task.
func (m *sim) start(name string, f func()) {
	t := &task{name: name}
	t.next, t.stop = iter.Pull(func(yield func(struct{}) bool) {
		defer func() {
			if r := recover(); r != nil && r != (ended{}) {
				m.check(false, "panic: %v\n%s", r, debug.Stack())
			}
		}()
		t.yield = yield
		f()
	})
	m.tasks = append(m.tasks, t)
}

// resume resumes one of the tasks that can go on, and reports whether there was one.
func (m *sim) resume() bool {
	n := len(m.tasks)
	if n == 0 {
		return false
	}
	for i, first := 0, m.rng.IntN(n); i < n; i++ {
		t := m.tasks[(first+i)%n]
		if t.until != nil && !t.until() {
			continue
		}
		t.until = nil
		m.running = t
		_, on := t.next()
		m.running = nil
		if !on {
			m.tasks = slices.DeleteFunc(m.tasks, func(o *task) bool { return o == t })
		}
		return true
	}
	return false
}

// fire lets time pass until the next alarm, which must not be after limit, and reports whether
// there was one.
func (m *sim) fire(limit time.Time) bool {
	var next *alarm
	for _, a := range m.alarms {
		if !a.at.IsZero() && (next == nil || a.at.Before(next.at)) {
			next = a
		}
	}
	if next == nil || next.at.After(limit) {
		return false
	}
	if m.now.Before(next.at) {
		m.now = next.at
	}
	next.at = time.Time{}
	m.steps++
	m.start("timer", next.f)
	return true
}

// after calls f once, after d, as a task.
func (m *model) after(d time.Duration, f func()) *alarm {
	a := &alarm{m: m, f: f}
	a.Reset(d)
	m.alarms = slices.DeleteFunc(m.alarms, func(o *alarm) bool { return o.at.IsZero() && o != m.tick })
	m.alarms = append(m.alarms, a)
	return a
}

// Now and AfterFunc implement Clock.
func (m *model) Now() time.Duration { return m.now.Sub(dawn) + time.Hour }

func (m *model) AfterFunc(d time.Duration, f func()) Timer {
	a := m.after(d, f)
	if m.tick == nil { // the Poller's, which is set again and again
		m.tick = a
	}
	return a
}

// spawn implements scheduler.
func (m *model) spawn(f func()) { m.start("background", f) }

// sleep is time.Sleep, in a task.
func (m *model) sleep(d time.Duration) {
	over := false
	m.after(d, func() { over = true })
	m.block(func() bool { return over })
}

// run goes on until nothing more happens before limit, or something is wrong.
func (m *model) run(limit time.Time) {
	for m.err == nil && (m.fire(m.now) || m.resume() || m.fire(limit)) {
		m.inspect()
	}
}
