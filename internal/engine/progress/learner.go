package progress

import (
	"math"
	"math/rand/v2"
	"time"
)

// How long a goroutine that waits polls before it sleeps is learnt for each queue, since no
// constant suits all traffic. There are two questions.
//
// How long, if at all? That is told by how long waits take: a budget gains wakeUp for each
// that ends within it, and costs the time until then, or all of it.
//
// Whether at all? That depends on more than can be seen from here: whether the peer sleeps,
// what a wake-up costs, who else wants the processor, in this process or beside it. So it is
// tried, for some waits in a row: an epoch as usual, one of the other kind (the trial), and
// one as usual again. The cost of an epoch is what goroutines have waited for each byte that
// has moved. Neighbours in time are compared, so that changes of the traffic cancel out.
// What one side gains by not sleeping depends on the other, so both try it together: trials
// begin when the time of day is a multiple of the pause between them. Once that is long, those
// of a side that sleeps begin half of it later: two of which one polls would only change places.
//
// One answer needs no trial: polling is in vain where it ends no wait, and waits are far longer
// than even the longest budget. Few waits are to tell that, since it is so where many processes share the
// processors: each has few, and all of them wait for those that poll.
const (
	arms = 4 // budgets to choose from, the first of which is to sleep at once
	// LearntTime is the longest budget of which one learns whether it pays.
	LearntTime = 500 * time.Microsecond
	// wakeUp is about what is gained by not sleeping: a wake-up here and, since a peer that is
	// answered late sleeps, too, another one there, and cold caches.
	wakeUp = 200 * time.Microsecond
	// average is how many waits count for what they take.
	average = 64
	// An epoch has so many waits at least, which take so long together, or a few long ones.
	epochWaits = 24
	epochTime  = time.Millisecond
	fewWaits   = 12
	vainWaits  = 6 // in which somebody has polled, and that has ended none
	longTime   = 20 * time.Millisecond
	// pollPrice is what polling costs besides the time that passes anyway.
	pollPrice = 0.15
	// What happens between two waits counts up to mostGap: polling may slow it down.
	mostGap = 200 * time.Microsecond
	// A wait costs mostCost at most, and one that is longer than longWait has nothing to do with
	// polling: somebody was idle. The wait after that does not poll.
	mostCost = 2 * time.Millisecond
	longWait = 20 * time.Millisecond
	// A trial ends early once it costs so much more than usual, in powers of two.
	hopeless = 1
	// Traffic that costs so much more before a trial than after it, or less, in powers of two, has
	// changed: the trial tells nothing.
	changed = 1
	// What is unusual must cost so much less, in powers of two. Sleeping costs the peer, too,
	// which is not seen here.
	pollGain  = 0.03
	sleepGain = 0.1
	// Who polls and finds what it waits for more seldom than this sleeps, whatever that costs.
	rareHits = 0.25
	// leastTrials is how many trials it takes, and mostTrials how many count.
	leastTrials = 4
	mostTrials  = 16
	// Trials that change nothing become rarer: the pause doubles from leastPause to mostPause.
	// All of them may cost one part in trialShare of the time that is spent waiting, and trialCredit.
	leastPause  = 4 * time.Millisecond
	mostPause   = leastPause << 5
	trialShare  = 64
	trialCredit = 5 * time.Millisecond
)

// phase says what the epoch that goes on is for.
type phase int

const (
	settled phase = iota // nothing else
	onTrial              // the other kind
	after                // the usual kind, to compare with
)

// learner belongs to the owner of the queue.
type learner struct {
	budgets [arms]time.Duration
	within  [arms]float64 // share of the waits that end within a budget
	short   [arms]float64 // what a budget covers of each wait, in ns

	polls bool // rather than sleep at once
	dozes bool // after a long wait
	phase phase
	arm   int // the place of the budget in use

	epoch  epoch
	before float64 // cost of the epoch before the trial, in powers of two
	tried  float64 // of the trial
	took   time.Duration
	trials trials
	zero   time.Duration // the time of day, modulo mostPause, that times are counted from
	last   time.Duration // when the last wait ended
	next   time.Duration // when the next trial may begin
	dice   *rand.Rand
	pause  time.Duration
	debt   time.Duration // what trials have cost, and waits since have not paid for

	hits, misses   uint64 // waits that polling has ended, and others
	tries, changes uint64 // trials, and how often something was changed, by one or without
}

// epoch is some waits in a row.
type epoch struct {
	waits  int
	polled int // in so many of these somebody has polled
	hits   float64
	waited time.Duration
	costs  float64             // what the waits cost, to the power of 3/4
	within [arms]int           // waits that ended within a budget
	short  [arms]time.Duration // what it covers of all
	moved  uint64              // as of its begin
}

// trials is what trials have cost, in powers of two of what is usual.
type trials struct{ n, sum, squares float64 }

// newLearner chooses between budgets up to most, or has nobody poll if that is not positive. Above
// LearntTime there is nothing to learn: processors are to spare. zero is the time of day that
// times are counted from, seed what tells it from the peer's.
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

// budget is for how long to poll, now.
func (l *learner) budget() time.Duration {
	if l.dozes {
		return 0
	}
	return l.budgets[l.arm]
}

// waited notes a wait which has ended, for how long somebody has polled meanwhile, whether
// that has ended it, and how much has moved so far. It reports whether that may have changed
// the budget, or ended an epoch.
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
	// Not quite the sum: few long waits, as for a garbage collection, are not to hide the others.
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

// vain reports that polling has ended none of the waits, which are far longer.
func (e *epoch) vain() bool {
	return e.polled >= vainWaits && e.hits == 0 && e.waited > time.Duration(e.waits)*mostCost
}

func (e *epoch) isLong() bool {
	return e.waits >= epochWaits && e.waited >= epochTime || e.waited >= longTime
}

// measure takes in how long the waits of an epoch took.
func (l *learner) measure(e *epoch) {
	n := float64(e.waits)
	weight := min(1, n/average)
	for i := range arms {
		l.within[i] += weight * (float64(e.within[i])/n - l.within[i])
		l.short[i] += weight * (float64(e.short[i])/n - l.short[i])
	}
}

// longest is the budget that gains most, of those with which one polls. If none gains anything,
// it is for both sides to find each other awake, or a trial shows that there is no use in it.
func (l *learner) longest() (arm int) {
	arm, most := arms-1, 0.0
	for i := 1; i < arms; i++ {
		if gain := l.within[i]*float64(wakeUp) - l.short[i]; gain > most {
			arm, most = i, gain
		}
	}
	return arm
}

// cost is how long it takes to move a byte.
func (e *epoch) cost(moved uint64) float64 {
	n := float64(e.waits)
	return 4/3.0*math.Log2(e.costs/n) + math.Log2(n/float64(max(moved-e.moved, 1)))
}

// end moves on to the next epoch.
func (l *learner) end(now time.Duration, cost float64) {
	l.debt = max(l.debt-l.epoch.waited/trialShare, -trialCredit)
	if l.arm > 0 { // else waits take longer than they would
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
	default: // both sides have slept, and are to find each other awake
		l.arm = arms - 1
	}
}

// settle has what is usual go on, and makes the pause before the next trial longer.
func (l *learner) settle(cost float64) {
	l.phase, l.before = settled, cost
	l.pause = min(2*l.pause, mostPause)
}

// schedule has the next trial begin at a multiple of the pause.
func (l *learner) schedule(now time.Duration) {
	l.next = now + l.pause - (l.zero+now)%l.pause
	if !l.polls && l.pause == mostPause {
		l.next += l.pause / 2
	}
}

// judge takes in what a trial has cost more than what is usual would have, in powers of two.
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

// change has the other kind be usual from now on.
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

// below reports that the mean is, by so many times its standard error, or that the first ones
// were as good as can be.
func (t *trials) below(limit, errors float64) bool {
	mean := t.sum / t.n
	deviation := math.Sqrt(max(0, t.squares/t.n-mean*mean) / t.n)
	return t.n >= leastTrials && mean+errors*deviation < limit || t.n >= 2 && mean <= -hopeless
}
