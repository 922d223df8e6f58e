//go:build !race

package progress

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// TestTwoLearners: two sides that learn come to do about as well as with the best budget that both
// could have agreed on, wherever they start, and hardly poll where that gains nothing.
func TestTwoLearners(t *testing.T) {
	for name, c := range map[string]struct {
		host
		polls bool
	}{
		"short":       {host{service: 3 * time.Microsecond, wakeUp: 20 * time.Microsecond}, true},
		"calls":       {host{service: 10 * time.Microsecond, wakeUp: 30 * time.Microsecond, pause: 300 * time.Microsecond, rare: 100}, true},
		"large calls": {host{service: 80 * time.Microsecond, wakeUp: 50 * time.Microsecond, pause: time.Millisecond, rare: 50}, true},
		// What one side gains alone is too little.
		"only together":              {host{service: 180 * time.Microsecond, wakeUp: 40 * time.Microsecond}, true},
		"bursts":                     {host{service: 10 * time.Microsecond, wakeUp: 30 * time.Microsecond, burst: 100, idle: 50 * time.Millisecond}, true},
		"long bursts":                {host{service: 10 * time.Microsecond, wakeUp: 30 * time.Microsecond, burst: 1000, idle: 200 * time.Millisecond}, true},
		"work in between":            {host{service: 5 * time.Millisecond, wakeUp: 50 * time.Microsecond}, false},
		"one processor":              {host{service: 40 * time.Microsecond, wakeUp: 5 * time.Microsecond, theft: 1}, false},
		"busy host, short":           {host{service: 3 * time.Microsecond, wakeUp: 20 * time.Microsecond, slice: 3 * time.Millisecond}, true},
		"busy host, large calls":     {host{service: 150 * time.Microsecond, wakeUp: 10 * time.Microsecond, slice: 3 * time.Millisecond}, false},
		"slow machine, slow wake-up": {host{service: 100 * time.Microsecond, wakeUp: 300 * time.Microsecond}, true},
	} {
		t.Run(name, func(t *testing.T) {
			const learn, measured = 12 * time.Second, 4 * time.Second
			best := time.Duration(1 << 62)
			for fixed := range 2 {
				g := newGame(c.host, 1, fixed, [2]bool{true, true})
				g.run(learn)
				round, _ := g.run(measured)
				best = min(best, round)
			}
			for start := range 4 {
				for seed := range uint64(3) {
					g := newGame(c.host, seed, -1, [2]bool{start&1 > 0, start&2 > 0})
					g.run(learn)
					round, polling := g.run(measured)
					what := fmt.Sprintf("start %d, seed %d", start, seed)
					assert.LessOrEqual(t, float64(round), 1.1*float64(best), what)
					if !c.polls {
						assert.LessOrEqual(t, polling, 0.04, what)
					}
				}
			}
		})
	}
}
