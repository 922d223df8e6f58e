package progress

import (
	"math"
	"time"
)

// Whether a leader polls before it sleeps is learnt for each queue. A sleep costs about what a socket's does,
// so polling gains a wake-up at most, here and at the peer; what it takes from others who want the processor,
// in this process or another, cannot be seen from here, nor whether the peer sleeps. So both are tried: waits
// in a row are an epoch; first comes one of the usual kind, then one of the other kind (the trial), and then
// one of the usual kind again. An epoch's cost is how long leaders have waited for each byte that has moved.
// Only neighbours in time are compared, so that changes of the traffic cancel out. What one side gains
// depends on the other side, so both run their trials at the same time: when the time of day is a multiple of
// the pause between them. Once the pause is at its longest, the trials of a side that sleeps begin half a pause
// later: otherwise a side that polls and one that sleeps would only change places.
//
// Some answers need no trial. A side sleeps if polling ends few of its waits, which are long, or not enough of them
// in two epochs in a row. A few waits must be enough to tell, since this is what happens where many processes
// share the processors. A side that sleeps tries nothing while many of its waits are longer than any budget
// and two wake-ups: 64 processes that tried nevertheless made half as many round trips. It sleeps and tries nothing,
// either, while its process collects garbage often: the collectors want the processors, and the waits that they
// prolong differ too much for trials to tell (garbage.go). And a side polls for the shorter of two times if that ends
// most of the waits: those that remain often last because a garbage collection, here or at the peer, or another
// process needs the processor.
const (
	// LearntTime is the longest budget for which a learner finds out whether it pays.
	LearntTime = 500 * time.Microsecond
	// shortTime is the shorter budget. In gRPC calls of 64 KiB, to poll for LearntTime costs a fifth more CPU time,
	// and the latest hundredth of the calls of 64 bytes takes half as long again.
	shortTime = 200 * time.Microsecond
	// An epoch has at least epochWaits waits that take epochTime together, or fewWaits that take longWait.
	epochWaits = 24
	epochTime  = time.Millisecond
	fewWaits   = 6
	// vainWaits long ones are enough to tell that polling is in vain.
	vainWaits = 3
	// The length of a wait that is longer than longWait has nothing to do with polling: somebody was idle, or
	// many others had their turns.
	longWait = 20 * time.Millisecond
	// mostSlept is how long three quarters of the waits of a side that sleeps may be for polling to be tried, wake-ups
	// included. With half of them, 64 processes on two processors, where half are short, spent a third of the time on trials.
	mostSlept = 2 * LearntTime
	// The time between two waits counts, since polling may slow down what happens then, unless it is longer than mostGap:
	// then nothing happened.
	mostGap = time.Millisecond
	// pollPrice is what polling costs besides the time that passes anyway, as a share of it.
	pollPrice = 0.15
	// To become usual, polling or sleeping must cost this much less than what is usual, in powers
	// of two. More is asked of sleeping, since it also costs the peer something, which is not seen here.
	pollGain  = 0.03
	sleepGain = 0.05
	// hopeless is a difference, in powers of two, at which a trial ends early. If the epochs before and
	// after it differ as much, the traffic has changed, and the trial tells nothing.
	hopeless = 1
	// leastTrials is how many trials a change takes; four times as many count.
	leastTrials = 4
	// The pause before a trial doubles from leastPause to mostPause, and is at least trialShare times what
	// the last one has cost.
	leastPause = 4 * time.Millisecond
	mostPause  = leastPause << 5
	trialShare = 64
)

// phase says what the current epoch is for.
type phase int

const (
	settled phase = iota // the usual kind, with no trial going on
	onTrial              // the other kind
	after                // the usual kind, to compare the trial with
)

// learner learns for one queue. Only the owner of the queue may use it.
type learner struct {
	most   time.Duration // the longest budget
	learns bool
	// wasteful says that the process collects garbage often.
	wasteful bool

	polls  bool          // the usual kind is to poll, rather than to sleep at once
	budget time.Duration // of a wait that polls
	poor   bool          // polling has not ended enough of the last epoch's waits
	phase  phase
	epoch  epoch
	before float64 // cost of the epoch before the trial, in powers of two
	tried  float64 // cost of the trial, likewise
	took   time.Duration
	trials trials
	zero   time.Duration // the time of day, modulo mostPause, from which times are counted
	last   time.Duration // when the last wait ended
	next   time.Duration // when the next trial may begin
	pause  time.Duration

	hits, misses   uint64 // waits that polling has ended, and others
	tries, changes uint64 // trials judged, and changes of the usual kind, by a trial or without
}

// epoch adds up some waits in a row.
type epoch struct {
	waits, hits int           // hits: ended by polling
	quick       int           // hits within shortTime
	short       int           // waits within mostSlept
	waited      time.Duration // in all
	idle        int           // waits longer than longWait, which are not among the others
	costs       float64       // sum of what each wait cost to the power of 3/4
	moved       uint64        // bytes moved up to its beginning
}

// trials sums up what trials have cost, relative to what is usual, in powers of two.
type trials struct{ n, sum, squares float64 }

// newLearner returns a learner that has leaders poll for budget, or not. If budget is not positive, none does;
// if it is longer than LearntTime, all do: somebody has processors to spare. zero is the time of day from which
// times are counted.
func newLearner(budget time.Duration, zero time.Time) learner {
	l := learner{
		most: max(budget, 0), learns: budget > 0 && budget <= LearntTime, polls: budget > 0,
		zero: time.Duration(zero.UnixNano() % int64(mostPause)), pause: leastPause,
	}
	if l.budget = l.most; l.learns {
		l.budget = min(l.most, shortTime)
	}
	return l
}

// now returns how long the next wait polls.
func (l *learner) now() time.Duration {
	if l.polls == (l.phase == onTrial) {
		return 0
	}
	return l.budget
}

// waited notes that a wait has ended after took, how long leaders have polled meanwhile, whether
// polling has ended it (hit), and how many bytes have moved so far. It reports whether an epoch has ended.
func (l *learner) waited(now, took, polling time.Duration, hit bool, moved uint64) bool {
	e := &l.epoch
	if hit {
		l.hits++
	} else {
		l.misses++
	}
	if !l.learns {
		return (l.hits+l.misses)%epochWaits == 0
	}
	gap := max(now-took-l.last, 0)
	if l.last = now; gap > mostGap {
		gap = 0
	}
	if took > longWait {
		e.idle++
	} else {
		e.add(took, gap, polling, hit)
	}
	if e.over() || l.vain() || l.phase == onTrial && e.waits >= fewWaits && e.cost(moved) > hopeless+l.before {
		cost := l.before
		if e.waits > 0 {
			cost = e.cost(moved)
		}
		l.end(now, cost)
		l.epoch = epoch{moved: moved}
		return true
	}
	return false
}

// add takes a wait in.
func (e *epoch) add(took, gap, polling time.Duration, hit bool) {
	e.waits++
	e.waited += took
	if took <= mostSlept {
		e.short++
	}
	if hit {
		e.hits++
		if took <= shortTime {
			e.quick++
		}
	}
	// Not quite the sum: a few long waits, as for a garbage collection, must not hide the others.
	cost := max(float64(took+gap)+pollPrice*float64(polling), 1)
	e.costs += math.Sqrt(cost * math.Sqrt(cost))
}

// vain reports whether polling has ended few of the epoch's waits, which are so long that the longest budget would not
// help, either.
func (l *learner) vain() bool {
	e := &l.epoch
	n, waited := e.waits+e.idle, e.waited+time.Duration(e.idle)*longWait
	return l.now() > 0 && n >= vainWaits && waited >= longWait && 4*e.hits < n && waited > time.Duration(n)*l.most
}

// over reports whether the epoch has gone on for long enough.
func (e *epoch) over() bool {
	return e.waits >= epochWaits && e.waited >= epochTime || e.waits >= fewWaits && e.waited >= longWait
}

// cost is how long it took to wait for each byte that has moved, in powers of two.
func (e *epoch) cost(moved uint64) float64 {
	n := float64(e.waits)
	return 4/3.0*math.Log2(e.costs/n) + math.Log2(n/float64(max(moved-e.moved, 1)))
}

// end ends an epoch, and decides what the next one is for.
func (l *learner) end(now time.Duration, cost float64) {
	before, e := l.before, &l.epoch
	vain := l.vain()
	again, enough := l.poor, 2
	if l.budget > shortTime {
		enough = 3 // since it costs more
	}
	l.poor = l.polls && l.phase != onTrial && 4*e.hits < enough*e.waits
	if l.budget = l.most; 2*e.quick >= e.waits { // so not after a trial of sleeping: the other side may still sleep
		l.budget = min(l.most, shortTime)
	}
	switch {
	case l.phase == onTrial:
		if vain { // its cost leaves out idle waits, but not what moved meanwhile
			cost = before + hopeless
		}
		l.tried, l.took, l.phase = cost, e.waited, after
		return
	case vain, l.poor && again, l.polls && l.wasteful:
		l.change()
	case l.phase == after && math.Abs(before-cost) < hopeless:
		l.judge(l.tried - (before+cost)/2)
	case l.phase == settled && now >= l.next && (l.polls || l.mayTry()):
		l.phase, l.before = onTrial, cost
		return
	}
	if l.before = cost; l.phase == after {
		l.phase, l.pause = settled, min(2*l.pause, mostPause)
		l.schedule(now)
	}
}

// mayTry reports whether polling may gain something for a side that sleeps.
func (l *learner) mayTry() bool {
	return 4*l.epoch.short >= 3*l.epoch.waits && !l.wasteful
}

// schedule has the next trial begin at a multiple of the pause, or half of the longest pause later if
// sleeping is usual.
func (l *learner) schedule(now time.Duration) {
	now += time.Duration(trialShare * max(0, 1-math.Exp2(l.before-l.tried)) * float64(l.took))
	l.next = now + l.pause - (l.zero+now)%l.pause
	if !l.polls && l.pause == mostPause {
		l.next += l.pause / 2
	}
}

// judge takes in how much more a trial has cost than the usual kind would have, in powers of two.
func (l *learner) judge(more float64) {
	l.tries++
	l.trials.add(max(-hopeless, min(hopeless, more)))
	if l.polls && l.trials.below(-sleepGain, 0) || !l.polls && l.trials.below(-pollGain, 0.5) {
		l.change()
	}
}

// change makes the other kind the usual one.
func (l *learner) change() {
	l.changes++
	l.polls, l.poor, l.budget = !l.polls, false, l.most
	l.trials = trials{}
	l.pause = leastPause
}

func (t *trials) add(x float64) {
	if t.n >= 4*leastTrials {
		t.n, t.sum, t.squares = t.n/2, t.sum/2, t.squares/2
	}
	t.n, t.sum, t.squares = t.n+1, t.sum+x, t.squares+x*x
}

// below reports whether the mean is below limit by this many times its standard error, after
// leastTrials, or whether the first trials, two or more, were as good as can be.
func (t *trials) below(limit, errors float64) bool {
	mean := t.sum / t.n
	deviation := math.Sqrt(max(0, t.squares/t.n-mean*mean) / t.n)
	return t.n >= leastTrials && mean+errors*deviation < limit || t.n >= 2 && mean <= -hopeless
}
