package progress

import (
	"math"
	"math/rand/v2"
	"time"
)

// How long a goroutine that waits polls before it sleeps, its budget, is learnt for each queue,
// since no constant suits all traffic. There are two questions.
//
// If it polls, for how long? The durations of waits tell: a budget gains wakeUp for each wait that
// ends within it, and costs the time until the wait ends, or all of the budget if it does not.
//
// Does it poll at all? That depends on more than can be seen from here: whether the peer sleeps,
// what a wake-up costs, and who else wants the processor, in this process or another. So both are
// tried, each for some waits in a row, an epoch: first the usual kind, then the other kind (the
// trial), and then the usual kind again. The cost of an epoch is how long goroutines have waited for
// each byte that has moved. Only neighbours in time are compared, so that changes of the traffic
// cancel out. What one side gains by not sleeping depends on the other side, so both run their trials
// at the same time: trials begin when the time of day is a multiple of the pause between them. Once
// the pause is at its longest, the trials of a side that sleeps begin half a pause later: otherwise a
// side that polls and one that sleeps would only change places.
//
// One answer needs no trial: polling is in vain if it ends no wait, and waits are far longer than
// even the longest budget. A few waits must be enough to tell, since this is what happens where many
// processes share the processors: each has few waits, and all of them wait for those that poll.
const (
	arms = 4 // how many budgets there are to choose from. The first is to sleep at once
	// LearntTime is the longest budget for which a learner finds out whether it pays.
	LearntTime = 500 * time.Microsecond
	// wakeUp is roughly what is gained by not sleeping: a wake-up here, another one at the peer
	// (since a peer that is answered late sleeps, too), and cold caches.
	wakeUp = 200 * time.Microsecond
	// average is about how many waits the averages of their durations cover.
	average = 64
	// An epoch has at least epochWaits waits that take epochTime together, or at least fewWaits
	// that take longTime together. One that something ends early has fewWaits, too, unless it is vain.
	epochWaits = 24
	epochTime  = time.Millisecond
	fewWaits   = 12
	vainWaits  = 6 // in which somebody has polled, without ending a wait, are enough to be vain
	longTime   = 20 * time.Millisecond
	// pollPrice is what polling costs besides the time that passes anyway, as a share of it.
	pollPrice = 0.15
	// The time between two waits counts, up to mostGap, since polling may slow down what happens then.
	mostGap = 200 * time.Microsecond
	// A wait costs mostCost at most. One that is longer than longWait has nothing to do with
	// polling: somebody was idle. The wait after it does not poll.
	mostCost = 2 * time.Millisecond
	longWait = 20 * time.Millisecond
	// A trial ends early once it costs this much more than usual, in powers of two.
	hopeless = 1
	// If the epochs before and after a trial differ this much in cost, in powers of two, the traffic
	// has changed, and the trial tells nothing.
	changed = 1
	// To become usual, polling or sleeping must cost this much less than what is usual, in powers
	// of two. More is asked of sleeping, since it also costs the peer something, which is not seen here.
	pollGain  = 0.03
	sleepGain = 0.1
	// A side where polling ends a smaller share of the waits than this sleeps, whatever that costs.
	rareHits = 0.25
	// leastTrials is how many trials a change takes, and mostTrials how many count.
	leastTrials = 4
	mostTrials  = 16
	// Trials that change nothing become rarer: the pause doubles from leastPause to mostPause.
	// Together they may cost one part in trialShare of the time that is spent waiting, plus trialCredit.
	leastPause  = 4 * time.Millisecond
	mostPause   = leastPause << 5
	trialShare  = 64
	trialCredit = 5 * time.Millisecond
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
	budgets [arms]time.Duration
	within  [arms]float64 // share of the waits that end within each budget
	short   [arms]float64 // how much of a wait each budget covers on average, in ns

	polls bool // the usual kind is to poll, rather than sleep at once
	dozes bool // the last wait was a long one, so this one does not poll
	phase phase
	arm   int // index of the budget in use

	epoch  epoch
	before float64 // cost of the epoch before the trial, in powers of two
	tried  float64 // cost of the trial, likewise
	took   time.Duration
	trials trials
	zero   time.Duration // the time of day, modulo mostPause, from which times are counted
	last   time.Duration // when the last wait ended
	next   time.Duration // when the next trial may begin
	dice   *rand.Rand
	pause  time.Duration
	debt   time.Duration // what trials have cost, and waits have not paid for since

	hits, misses   uint64 // waits that polling has ended, and others
	tries, changes uint64 // trials judged, and changes of the usual kind, by a trial or without
}

// epoch adds up some waits in a row.
type epoch struct {
	waits  int
	polled int // how many of these somebody has polled in
	hits   float64
	waited time.Duration
	costs  float64             // sum of what each wait cost to the power of 3/4
	within [arms]int           // waits that ended within each budget
	short  [arms]time.Duration // how much of all of them each budget covers
	moved  uint64              // bytes moved up to its beginning
}

// trials sums up what trials have cost, relative to what is usual, in powers of two.
type trials struct{ n, sum, squares float64 }

// newLearner returns a learner that chooses between budgets up to most, or has nobody poll if most is
// not positive. If most is longer than LearntTime there is nothing to learn: somebody has processors to
// spare. zero is the time of day from which times are counted. seed makes its dice differ from the peer's.
func newLearner(most time.Duration, zero time.Time, seed uint64) learner {
	most = max(most, 0)
	l := learner{
		budgets: [arms]time.Duration{0, most / 10, most * 3 / 10, most},
		dice:    rand.New(rand.NewPCG(seed, 0)),
		zero:    time.Duration(zero.UnixNano() % int64(mostPause)),
		polls:   most > 0, pause: leastPause, debt: -trialCredit,
	}
	switch {
	case most > LearntTime:
		l.arm = arms - 1
	case l.polls:
		l.arm = arms - 2 // until something is known
	}
	return l
}

// budget returns how long the next wait polls.
func (l *learner) budget() time.Duration {
	if l.dozes {
		return 0
	}
	return l.budgets[l.arm]
}

// waited notes that a wait has ended after took, how long somebody has polled meanwhile, whether
// polling has ended it (hit), and how many bytes have moved so far. It reports whether this may have
// changed the budget, or ended an epoch.
func (l *learner) waited(now, took, polling time.Duration, hit bool, moved uint64) bool {
	if hit {
		l.hits++
	} else {
		l.misses++
	}
	if most := l.budgets[arms-1]; most == 0 || most > LearntTime {
		return (l.hits+l.misses)%epochWaits == 0
	}
	woke := l.dozes
	if l.dozes = took > longWait; l.dozes {
		l.last = now
		return true
	}
	e := &l.epoch
	if hit {
		e.hits++
	}
	for i := arms - 1; i > 0 && took <= l.budgets[i]; i-- {
		e.within[i]++
	}
	for i := 1; i < arms; i++ {
		e.short[i] += min(took, l.budgets[i])
	}
	e.waits++
	e.waited += took
	if polling > 0 {
		e.polled++
	}
	gap := min(max(now-took-l.last, 0), mostGap)
	l.last = now
	// Not quite the sum: a few long waits, as for a garbage collection, must not hide the others.
	cost := max(float64(min(took+gap, mostCost))+pollPrice*float64(min(polling, mostCost)), 1)
	e.costs += math.Sqrt(cost * math.Sqrt(cost))
	if e.vain() || e.waits >= fewWaits &&
		(e.isLong() || l.phase == settled && now >= l.next || l.phase == onTrial && e.cost(moved) > hopeless+l.before) {
		l.end(now, e.cost(moved))
		l.epoch = epoch{moved: moved}
		return true
	}
	return woke
}

// vain reports whether polling has ended none of the waits, and these were far longer than any budget.
func (e *epoch) vain() bool {
	return e.polled >= vainWaits && e.hits == 0 && e.waited > time.Duration(e.waits)*mostCost
}

// isLong reports whether the epoch has gone on for long enough, if it has fewWaits.
func (e *epoch) isLong() bool {
	return e.waits >= epochWaits && e.waited >= epochTime || e.waited >= longTime
}

// measure takes an epoch into the averages of how long waits take.
func (l *learner) measure(e *epoch) {
	n := float64(e.waits)
	weight := min(1, n/average)
	for i := range arms {
		l.within[i] += weight * (float64(e.within[i])/n - l.within[i])
		l.short[i] += weight * (float64(e.short[i])/n - l.short[i])
	}
}

// longest returns the budget that gains most, of those that poll. If none gains anything, it is the
// longest: then both sides may find each other awake, or a trial shows that it is of no use.
func (l *learner) longest() (arm int) {
	arm, most := arms-1, 0.0
	for i := 1; i < arms; i++ {
		if gain := l.within[i]*float64(wakeUp) - l.short[i]; gain > most {
			arm, most = i, gain
		}
	}
	return arm
}

// cost is how long it took to wait for each byte that has moved, in powers of two.
func (e *epoch) cost(moved uint64) float64 {
	n := float64(e.waits)
	return 4/3.0*math.Log2(e.costs/n) + math.Log2(n/float64(max(moved-e.moved, 1)))
}

// end ends an epoch, and decides what the next one is for.
func (l *learner) end(now time.Duration, cost float64) {
	l.debt = max(l.debt-l.epoch.waited/trialShare, -trialCredit)
	if l.arm > 0 { // without polling, waits take longer than they would with it
		l.measure(&l.epoch)
	}
	before, e := l.before, &l.epoch
	switch {
	case e.vain():
		l.settle(cost)
		if l.took = e.waited; l.polls {
			l.change()
		} else {
			l.judge(hopeless)
		}
		l.schedule(now)
	case l.phase == onTrial:
		l.tried, l.took = cost, e.waited
		l.phase = after
	case l.phase == after:
		l.settle(cost)
		switch {
		case l.polls && e.hits < rareHits*float64(e.waits):
			l.change()
		case math.Abs(before-cost) < changed:
			l.judge(l.tried - (before+cost)/2)
		}
		l.schedule(now)
	default:
		if l.before = cost; now >= l.next {
			if l.debt <= 0 {
				l.phase = onTrial
			}
			l.schedule(now)
		}
	}
	switch {
	case l.polls == (l.phase == onTrial):
		l.arm = 0
	case l.phase == settled, l.phase == onTrial && l.dice.IntN(2) == 0:
		l.arm = l.longest()
	default: // both sides have slept, and should now find each other awake
		l.arm = arms - 1
	}
}

// settle goes on with the usual kind, and makes the pause before the next trial longer.
func (l *learner) settle(cost float64) {
	l.phase, l.before = settled, cost
	l.pause = min(2*l.pause, mostPause)
}

// schedule has the next trial begin at a multiple of the pause, or half of the longest pause later if
// sleeping is usual.
func (l *learner) schedule(now time.Duration) {
	l.next = now + l.pause - (l.zero+now)%l.pause
	if !l.polls && l.pause == mostPause {
		l.next += l.pause / 2
	}
}

// judge takes in how much more a trial has cost than the usual kind would have, in powers of two.
func (l *learner) judge(more float64) {
	l.tries++
	more = max(-hopeless, min(hopeless, more))
	l.debt += l.took - time.Duration(float64(l.took)*math.Exp2(-more))
	l.trials.add(more)
	if l.polls && !l.trials.below(-sleepGain, 0) || !l.polls && !l.trials.below(-pollGain, 0.5) {
		return
	}
	l.change()
}

// change makes the other kind the usual one.
func (l *learner) change() {
	l.changes++
	l.polls = !l.polls
	l.trials = trials{}
	l.pause = leastPause
}

func (t *trials) add(x float64) {
	if t.n >= mostTrials {
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
