package simfabric

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
)

// A long burst refuses far more in a row than chance does.
func TestRefusalBurst(t *testing.T) {
	_, a, b := pair(t, Config{AgainRate: 0.02, AgainBurst: 200})
	longest, burst := 0, 0
	for range 3000 {
		posted, _, err := a.Exchange([]fabric.Op{a.write(b, fabric.Write, 0, 0, 1)}, make([]fabric.Completion, 2))
		require.NoError(t, err)
		if burst++; posted == 1 {
			burst = 0
		}
		longest = max(longest, burst)
	}
	assert.Greater(t, longest, 50)
	assert.LessOrEqual(t, longest, 2*201) // one may follow another
}

// With a delay, an operation that fails does so when it would have arrived, and
// what was posted later can overtake it.
func TestErrorsOnTheWire(t *testing.T) {
	var events []Event
	n, a, b := pair(t, Config{Seed: 3, Delay: 50, Observe: func(ev Event) { events = append(events, ev) }})
	errTest := errors.New("test")
	a.local.Bytes()[0] = 1
	n.Fail(a, fabric.Write, errTest)
	a.post(a.write(b, fabric.Write, 1, 0, 1))
	require.Equal(t, []Event{{From: string(a.Name()), To: string(b.Name()), Kind: fabric.Write, Err: errTest, Addr: a.to}}, events)
	assert.Empty(t, a.poll(1))
	assert.Equal(t, []fabric.Completion{{Kind: fabric.Write, Tag: 1, Err: errTest}}, a.poll(60))
	assert.Zero(t, b.landing.Bytes()[0])
	assert.Len(t, events, 1)
}

// A few operations take far longer than all others.
func TestStragglers(t *testing.T) {
	_, a, b := pair(t, Config{Seed: 1, Delay: 4, Straggle: 0.1})
	late := 0
	for range 300 {
		a.post(a.write(b, fabric.Write, 0, 0, 1))
		steps := 0
		for ; len(a.poll(1)) == 0; steps++ {
			require.Less(t, steps, 64+1)
		}
		if steps > 4 {
			late++
		}
	}
	assert.Greater(t, late, 10)
	assert.Less(t, late, 60)
}

// A test hears of every byte that is written before it is.
func TestObserve(t *testing.T) {
	var b *side
	seen := map[uint64]bool{}
	observe := func(ev Event) {
		at := ev.Remote - b.landing.Region().Base()
		for i := at; i < at+uint64(ev.Len); i++ {
			assert.True(t, seen[i] || b.landing.Bytes()[i] == 0, "too late")
			seen[i] = true
		}
		assert.Equal(t, b.landing.Region().Key(), ev.Key)
		assert.Equal(t, string(b.Name()), ev.To)
	}
	p := Personality{VirtAddr: true}
	_, a, b := pair(t, Config{Personality: p, Delay: 3, Observe: func(ev Event) { observe(ev) }})
	for i := range a.local.Bytes() {
		a.local.Bytes()[i] = 1
	}
	a.post(a.write(b, fabric.Write, 1, 100, 50))
	a.poll(20)
	assert.Len(t, seen, 50)
}

// Where sends come after writes, none comes after a write that a close has dropped.
func TestClosingKeepsTheOrder(t *testing.T) {
	for seed := range uint64(20) {
		_, a, b := pair(t, Config{Seed: seed, Delay: 50, Personality: Verbs()})
		b.post(b.op(fabric.Recv, 1, 0, 64))
		a.post(a.write(b, fabric.Write, 2, 0, 1))
		a.post(a.op(fabric.Inject, 3, 64, 8))
		require.NoError(t, a.Shutdown())
		assert.Empty(t, b.poll(100), "seed %d", seed)
	}
}
