package engine

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/internal/race"
)

var (
	seedFlag  = flag.Uint64("seed", 0, "run the model test with this seed only")
	seedsFlag = flag.Int("seeds", race.Fewer(2000), "how many seeds the model test runs")
	fromFlag  = flag.Uint64("from", 1, "the first of them")
)

// TestModel runs whole worlds of endpoints over a simulated fabric: it makes Conn's own calls, in
// random order and on virtual time, while everything goes wrong that may. Each call runs in a
// coroutine, and only one at a time, so that a seed replays exactly. Every byte and every error is
// checked, and so is what must hold in between; see model_check_test.go.
func TestModel(t *testing.T) {
	if *seedFlag != 0 {
		m := newModel(*seedFlag)
		require.NoError(t, m.play(), "seed %d", *seedFlag)
		t.Logf("seed %d: %d steps, %+v", *seedFlag, m.step, m.opt)
		return
	}
	var shrank atomic.Int64
	seed, err := playAll(*seedsFlag, &shrank)
	require.NoError(t, err, "replay with: go test ./internal/engine -run 'TestModel$' -seed %d", seed)
	if *seedsFlag >= 100 {
		assert.Greater(t, int(shrank.Load()), *seedsFlag/20, "worlds in which windows grow and shrink")
	}
}

// playAll plays n seeds from -from on, and returns one that failed. shrank counts those whose windows grew and shrank.
func playAll(n int, shrank *atomic.Int64) (failed uint64, err error) {
	var (
		next atomic.Uint64
		wg   sync.WaitGroup
		mu   sync.Mutex
	)
	debug.SetTraceback("all")
	last := *fromFlag + uint64(n) - 1
	next.Store(*fromFlag - 1)
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for {
				seed := next.Add(1)
				if seed > last {
					return
				}
				if e := playSeed(seed, shrank); e != nil {
					next.Store(last) // the others stop
					mu.Lock()
					defer mu.Unlock()
					if err == nil || seed < failed {
						failed, err = seed, e
					}
					return
				}
			}
		})
	}
	wg.Wait()
	return failed, err
}

// playSeed makes the seed visible in the trace of a crash.
//
//go:noinline
func playSeed(seed uint64, shrank *atomic.Int64) error {
	m := newModel(seed)
	err := m.play()
	if m.shrank {
		shrank.Add(1)
	}
	runtime.KeepAlive(seed)
	return err
}

// TestModelReplays checks that what a seed does depends on nothing but the seed.
func TestModelReplays(t *testing.T) {
	different := map[uint64]bool{}
	seeds := race.Fewer(40)
	for seed := range uint64(seeds) {
		a, b := newModel(seed), newModel(seed)
		require.NoError(t, a.play())
		require.NoError(t, b.play())
		require.Equal(t, a.log.digest, b.log.digest, "seed %d", seed)
		different[a.log.digest] = true
	}
	assert.Len(t, different, seeds)
}

// model is the world that one seed makes.
type model struct {
	seed  uint64
	rng   *rand.Rand
	opt   options
	net   *simfabric.Network
	hosts []*host
	pairs []*pair
	conns []*modelConn
	// unclosed has the keys of regions that could not be closed when they should have been.
	unclosed map[uint64]bool
	now      time.Time
	step     int

	tasks   []*task
	running *task   // nil: the model itself
	coros   []*coro // without a task

	opened  int
	shrank  bool // a window grew and shrank again
	winding bool // nothing new begins, everything ends
	quietAt int  // last step in which something happened
	err     error
	log     eventLog
}

func newModel(seed uint64) *model {
	m := &model{seed: seed, unclosed: map[uint64]bool{}, rng: rand.New(rand.NewPCG(seed, 7)), now: time.Unix(1e9, 0)}
	m.opt = m.randomOptions()
	return m
}

// hung is how long a seed may take before it counts as caught in a loop.
const hung = time.Minute

// play runs the world to its end. The error says what went wrong in it.
func (m *model) play() (err error) {
	// Faults in unmapped memory should name the seed, too.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer time.AfterFunc(hung, func() { panic(fmt.Sprintf("seed %d is caught in a loop", m.seed)) }).Stop()
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v\n%s\n%s", r, debug.Stack(), m.log.String())
		}
	}()
	m.build()
	for !m.failed() && !m.over() {
		m.step++
		m.act()
		if m.quietAt == m.step {
			m.look()
		}
		switch {
		case m.step == m.opt.steps:
			m.wind()
		case m.step > m.opt.steps+stepBound:
			m.failf("does not end")
		}
	}
	if !m.failed() {
		m.finish()
	}
	if !m.failed() {
		for _, co := range m.coros {
			co.stop()
		}
		return nil
	}
	return fmt.Errorf("step %d: %w\n%s", m.step, m.err, m.dump())
}

const (
	// stepBound is how many steps a world may take to end: the longest of 100,000 took less than a quarter.
	stepBound = 400_000
	// stillBound is how many steps may pass without an event before the clock is moved on. At ten times that it is stuck.
	stillBound = 4_000
)

var errModel = errors.New("model")

// failf notes the first thing that went wrong. The world stops after the step.
func (m *model) failf(format string, args ...any) {
	if m.err == nil {
		m.err = fmt.Errorf("%w: "+format, append([]any{errModel}, args...)...)
	}
}

func (m *model) failed() bool { return m.err != nil }

func (m *model) check(ok bool, format string, args ...any) bool {
	if !ok {
		m.failf(format, args...)
	}
	return ok
}

// pick returns one of n at random.
func pick[T any](m *model, n ...T) T { return n[m.rng.IntN(len(n))] }

// oneIn is true once in n times on average.
func (m *model) oneIn(n int) bool { return m.rng.IntN(n) == 0 }

// act does one thing that could happen next.
func (m *model) act() {
	m.now = m.now.Add(time.Duration(m.rng.IntN(100_000)))
	if m.step%8 == 0 {
		m.thaw(false)
		m.tellLosses()
		m.settlePaths()
		m.doChores()
	}
	if m.opt.cruel > 0 && m.rng.IntN(1000) < m.opt.cruel && !m.winding {
		m.cruelty(pick(m, m.hosts...))
	}
	switch r := m.rng.IntN(1000); {
	case r < 200:
		for range 1 + m.rng.IntN(6) {
			if h := pick(m, m.hosts...); m.step >= h.asleep {
				m.poll(h)
			}
		}
	case r < 203: // somebody else has the processor, while completions pile up
		pick(m, m.hosts...).asleep = m.step + m.rng.IntN(400)
	case r < 215:
		m.supply(pick(m, m.hosts...))
	case r < 330:
		for range 1 + m.rng.IntN(3) {
			m.resumeAny()
		}
	case r < 900-m.opt.restless:
		m.actEnd()
	case r < 900:
		m.unrest()
	case r < 986:
		m.openAny()
	case r < 990:
		m.heartbeat(pick(m, m.hosts...))
	case r < 992:
		m.tick(time.Duration(m.rng.IntN(300)) * time.Millisecond)
	case r < 995:
		m.settle()
	default:
		m.fault()
	}
	if m.opt.losses > 0 && m.step%stillBound == 0 && slices.ContainsFunc(m.pairs, (*pair).failing) {
		m.findLosses()
	}
	switch still := m.step - m.quietAt; {
	case still > 10*stillBound:
		m.failf("stuck")
	case still > 0 && still%stillBound == 0:
		m.hasten()
	}
}

// happened says that the world is not standing still.
func (m *model) happened() { m.quietAt = m.step }

// tick moves the clock on.
func (m *model) tick(d time.Duration) {
	m.note("tick", nil, int(d), 0)
	m.now = m.now.Add(d)
}

// hasten makes everything due that only time or the outside brings.
func (m *model) hasten() {
	m.thaw(true)
	for _, p := range m.pairs {
		for side, at := range p.tellAt {
			p.tellAt[side] = min(at, m.step)
		}
	}
	m.tick(2 * choreTime)
	if m.step-m.quietAt > 3*stillBound {
		m.tick(2 * m.opt.deadAfter)
	}
}

// findLosses waits until nothing is on its way that could be taken for lost, and then lets six
// tenths of DeadAfter pass between three heartbeats, which find out what was lost.
func (m *model) findLosses() {
	quiet := 0
	for i := 0; quiet < 2; i++ {
		if i == 1000 {
			return
		}
		moving := false
		for _, h := range m.hosts {
			moving = m.poll(h) > 0 || moving
		}
		quiet++ // twice: a poll brings what hosts that were polled before it find
		if s := m.net.Stats(); moving || s.InFlight > s.Stuck {
			quiet = 0
		}
	}
	for i := range 3 {
		if i > 0 {
			m.tick(m.opt.deadAfter * 3 / 10)
		}
		for _, h := range m.hosts {
			m.heartbeat(h)
		}
	}
}

// wind begins the end: everything that is open is brought to an orderly end.
func (m *model) wind() {
	m.note("wind", nil, 0, 0)
	m.winding = true
	m.thaw(true)
	for _, h := range m.hosts {
		m.net.FailCall(h.fab, simfabric.Fault{})
	}
	for _, c := range m.conns {
		c.until = m.step
	}
}

// over reports that all conns have ended and no call is under way.
func (m *model) over() bool {
	if !m.winding || !m.ended() {
		return false
	}
	m.settle() // an Open that was given up may still be on its way
	return m.ended()
}

func (m *model) ended() bool {
	changes := func(p *pair) bool { return p.failing() || p.checking() }
	isOpen := func(c *modelConn) bool { return !c.done() }
	return !slices.ContainsFunc(m.pairs, changes) && !slices.ContainsFunc(m.conns, isOpen) && len(m.tasks) == 0
}
