package progress

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// host is a machine on which two sides send each other a message in turn, on virtual time.
type host struct {
	service time.Duration // between a message and its answer
	wakeUp  time.Duration // of a side that sleeps
	// On a busy host, a side that has polled and worked for a slice waits for as long.
	slice time.Duration
	// theft is how much longer a side takes for each unit of time that the other one polls
	// meanwhile, as when both need the same processor.
	theft float64
	// pause is that of a garbage collection, which comes once in rare rounds on average.
	pause time.Duration
	rare  int
	// After burst rounds, nothing happens for as long as idle says.
	burst int
	idle  time.Duration
}

type side struct {
	learner learner
	fixed   int // 1: it polls, 0: it does not, whatever is learnt
	waiting time.Duration
	used    time.Duration // of its slice
	polled  time.Duration
	moved   uint64
}

func (s *side) budget() time.Duration {
	if s.fixed >= 0 {
		return time.Duration(s.fixed) * s.learner.most
	}
	return s.learner.now()
}

// game is two sides on a host.
type game struct {
	host
	rng    *rand.Rand
	now    time.Duration
	sides  [2]*side
	rounds int
}

func newGame(h host, seed uint64, fixed int, polls [2]bool) *game {
	g := &game{host: h, rng: rand.New(rand.NewPCG(seed, 2))}
	for i := range g.sides {
		l := newLearner(LearntTime, time.Unix(0, 0))
		l.polls = polls[i]
		g.sides[i] = &side{learner: l, fixed: fixed}
	}
	return g
}

// run plays for some time, not counting idle time. It returns how long a message and its answer
// took on average, and the share of the time in which the sides polled.
func (g *game) run(d time.Duration) (round time.Duration, polling float64) {
	start, rounds := g.now, g.rounds
	until := start + d
	for _, s := range g.sides {
		s.polled = 0
	}
	for g.now < until {
		if g.burst > 0 && g.rounds%g.burst == 0 {
			g.now += g.idle
			start += g.idle
			until += g.idle
		}
		for i, s := range g.sides {
			g.receive(s, g.sides[1-i])
		}
		g.rounds++
	}
	elapsed := g.now - start
	return elapsed / time.Duration(g.rounds-rounds), float64(g.sides[0].polled+g.sides[1].polled) / float64(2*elapsed)
}

// receive has s find the other side's message, and answer it.
func (g *game) receive(s, other *side) {
	took := g.now - s.waiting
	budget := s.budget()
	polling := min(took, budget)
	hit := took <= budget
	s.polled += polling
	if !hit {
		g.now += g.wakeUp
		took += g.wakeUp
	}
	s.moved += 100
	s.learner.waited(g.now, took, polling, hit, s.moved)
	work := time.Duration(float64(g.service) * (0.8 + 0.4*g.rng.Float64()))
	if g.rare > 0 && g.rng.IntN(g.rare) == 0 {
		work += g.pause
	}
	work += time.Duration(g.theft * float64(min(work, other.budget())))
	g.now += work
	if s.used += work + polling; g.slice > 0 && s.used > g.slice {
		s.used = 0
		g.now += g.slice
	}
	s.waiting = g.now
}

// pupil is a learner that is told of waits in a row.
type pupil struct {
	learner
	clock time.Duration
	moved uint64
}

func newPupil() *pupil { return &pupil{learner: newLearner(LearntTime, time.Unix(0, 0))} }

// wait has a wait end after took, or, unless polling ends it, after wakeUp more. It returns how long the wait
// polled, and whether an epoch has ended.
func (p *pupil) wait(took, wakeUp time.Duration) (polling time.Duration, over bool) {
	budget := p.now()
	hit := took <= budget
	if polling = min(took, budget); !hit {
		took += wakeUp
	}
	p.clock, p.moved = p.clock+took, p.moved+100
	return polling, p.waited(p.clock, took, polling, hit, p.moved)
}

// TestLearnerInVain: where waits are far longer than polling may last, a process that has few of
// them learns after a few that it should sleep, and does not poll again before they are shorter.
func TestLearnerInVain(t *testing.T) {
	for _, wait := range []time.Duration{8 * time.Millisecond, longWait, 5 * longWait} {
		t.Run(wait.String(), func(t *testing.T) { testLearnerInVain(t, wait) })
	}
}

func testLearnerInVain(t *testing.T, wait time.Duration) {
	const short, wakeUp = 20 * time.Microsecond, 50 * time.Microsecond
	l := newPupil()
	for range vainWaits {
		l.wait(wait, 0)
	}
	assert.False(t, l.polls)
	for range 10_000 {
		polling, _ := l.wait(wait, 0)
		assert.Zero(t, polling)
	}
	for begin := l.clock; !l.polls && l.clock-begin < 4*time.Second; {
		l.wait(short, wakeUp)
	}
	assert.True(t, l.polls, "once waits are short")
}

// TestLearnerWasteful: a process that collects garbage often sleeps, though polling ends its waits, until it
// collects less.
func TestLearnerWasteful(t *testing.T) {
	const short, wakeUp = 20 * time.Microsecond, 50 * time.Microsecond
	l := newPupil()
	for range 10 * epochWaits {
		l.wait(short, wakeUp)
	}
	assert.True(t, l.polls)
	l.wasteful = true
	for range 10 * epochWaits { // a trial may be going on
		l.wait(short, wakeUp)
	}
	for range 1000 * epochWaits {
		polling, _ := l.wait(short, wakeUp)
		assert.Zero(t, polling)
	}
	l.wasteful = false
	for begin := l.clock; !l.polls && l.clock-begin < time.Second; {
		l.wait(short, wakeUp)
	}
	assert.True(t, l.polls)
}

// TestLearnerWithoutBudget: without a budget nobody polls.
func TestLearnerWithoutBudget(t *testing.T) {
	l := newLearner(-1, time.Unix(0, 0))
	for i := range 1000 {
		l.waited(time.Duration(i)*time.Microsecond, time.Microsecond, 0, false, uint64(i))
		assert.Zero(t, l.now())
	}
}

// TestLearnerBudget: a side polls for the shorter time while that ends most of the waits. It sleeps if polling
// ends too few of them in two epochs in a row, even if the longest budget ends half.
func TestLearnerBudget(t *testing.T) {
	l := newPupil()
	epoch := func(waits ...time.Duration) {
		for i := 0; ; i++ {
			if _, over := l.wait(waits[i%len(waits)], 0); over {
				return
			}
		}
	}
	const quick, slow, long = shortTime / 2, 2 * shortTime, 2 * LearntTime
	l.next = time.Hour // no trials
	assert.Equal(t, shortTime, l.now())
	epoch(quick, quick, slow)
	assert.Equal(t, shortTime, l.now())
	epoch(quick, slow, slow)
	assert.Equal(t, LearntTime, l.now())
	epoch(slow)
	assert.Equal(t, LearntTime, l.now())
	epoch(quick)
	assert.Equal(t, shortTime, l.now())
	epoch(quick, long, long)
	assert.Equal(t, LearntTime, l.now(), "one epoch proves nothing")
	epoch(quick, long)
	assert.Zero(t, l.now())
}

// TestLearnerPauses: what happens in a pause between two waits does not hide that they are longer if they poll.
func TestLearnerPauses(t *testing.T) {
	const asleep, polled = 50 * time.Microsecond, 70 * time.Microsecond
	l := newPupil()
	for range 100 * epochWaits {
		l.clock += 5 * time.Millisecond
		took, polling := asleep, time.Duration(0)
		if l.now() > 0 {
			took, polling = polled, polled
		}
		l.clock, l.moved = l.clock+took, l.moved+100
		l.waited(l.clock, took, polling, polling > 0, l.moved)
	}
	assert.False(t, l.polls)
}

// TestLearnerPausesAsleep: nor do they keep a side that sleeps from trying, whether it fell asleep over longer ones or not.
func TestLearnerPausesAsleep(t *testing.T) {
	const wakeUp = 100 * time.Microsecond
	for _, vain := range []int{0, vainWaits} {
		l := newPupil()
		for range vain {
			l.wait(longWait+1, 0)
		}
		for l.clock < 20*time.Second {
			for range 12 {
				l.wait(20*time.Microsecond, wakeUp)
			}
			l.wait(longWait-time.Millisecond, wakeUp)
		}
		assert.True(t, l.polls, "after %d waits in vain", vain)
	}
}

// TestLearnerVainTrials: trials of polling that end no wait gain nothing, though their idle waits do not count.
func TestLearnerVainTrials(t *testing.T) {
	l, rng := newPupil(), rand.New(rand.NewPCG(1, 2))
	for l.clock < 1000*time.Second {
		took := LearntTime + LearntTime/5
		if rng.Float64() < 0.2 {
			took = longWait + longWait/2
		}
		l.wait(took, 50*time.Microsecond)
	}
	assert.Zero(t, l.hits)
	assert.EqualValues(t, 1, l.changes)
}
