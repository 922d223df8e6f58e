package engine

import (
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/internal/race"
	"github.com/seed202c38ff/fabricnet/pool"
)

// deepSim is a fabric that a thousand peers can share.
func deepSim() simfabric.Config {
	sim := simfabric.TCP()
	sim.RxDepth, sim.TxDepth = 1<<15, 1<<12
	return simfabric.Config{Seed: 1, Personality: sim}
}

func roundTripTo(a, b *Conn) error {
	limit := time.Now().Add(20 * time.Second)
	for i, c := range []*Conn{a, b} {
		if err := c.SetDeadline(limit); err != nil {
			return err
		}
		if _, err := c.Write([]byte{byte(i)}); err != nil {
			return err
		}
	}
	for i, c := range []*Conn{b, a} {
		buf := make([]byte, 1)
		if _, err := c.Read(buf); err != nil {
			return err
		}
		if buf[0] != byte(i) {
			return fmt.Errorf("read %d instead of %d", buf[0], i)
		}
	}
	return nil
}

// TestSteps: how much the endpoint looks at for the activity of one conn is the same with a
// thousand peers or conns as with ten, whether they are idle or waiting.
func TestSteps(t *testing.T) {
	for name, crowd := range map[string]func(s *star, n int) []*Conn{
		"idle peers": func(s *star, n int) []*Conn {
			for range n {
				s.join(t)
			}
			return nil
		},
		"idle conns": func(s *star, n int) (conns []*Conn) {
			for range n {
				a, b := s.dial(t, 0)
				conns = append(conns, a, b)
			}
			return conns
		},
		"peers that are stopped, and written to": func(s *star, n int) (conns []*Conn) {
			for i := range n {
				s.join(t)
				a, b := s.dial(t, i+2)
				conns = append(conns, a, b)
			}
			s.quiet()
			for i, spoke := range s.spokes[2:] {
				s.net.Freeze(spoke.fab)
				go func() {
					for range 10 {
						_, _ = conns[2*i+1].Write(make([]byte, 100))
					}
				}()
			}
			return conns
		},
		"conns whose writers wait": func(s *star, n int) (conns []*Conn) {
			for range n {
				a, b := s.dial(t, 0)
				conns = append(conns, a, b)
				go func() { _, _ = b.Write(make([]byte, 64<<10)) }()
			}
			return conns
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := race.Fewer(1000)
			few, many := steps(t, crowd, 10), steps(t, crowd, n)
			t.Logf("%.3f looks for each completion with 10, %.3f with %d", few, many, n)
			assert.Less(t, many, 2*few+0.1)
		})
	}
}

// steps returns how many peers and conns the hub looks at for each completion, while one conn is
// used among n others.
func steps(t *testing.T, crowd func(s *star, n int) []*Conn, n int) float64 {
	cfg := Config{Budget: pool.NewBudget(1 << 30), Window: 4 << 10, Ring: 4 << 10}
	cfg.DeadAfter = time.Hour // so that stopped peers do not end meanwhile, and free something
	s := newStar(t, deepSim(), cfg, 0)
	defer s.close(t)
	s.cfg.Budget = nil // the spokes have their own
	s.join(t)
	s.join(t)
	conns := crowd(s, n)
	a, b := s.dial(t, 1)
	healthy(t, a, b)
	s.quiet()
	before := s.hub.Stats()
	for range 20 {
		healthy(t, a, b)
	}
	after := s.hub.Stats()
	resetConns(t, append(conns, a, b)...)
	return float64(after.steps-before.steps) / float64(after.Reaped-before.Reaped)
}

// TestStepsWhileAllWait: while n peers wait for a staging chunk, the cost of one event does not grow with n.
func TestStepsWhileAllWait(t *testing.T) {
	looks := func(n int) (steps uint64) {
		s := newStar(t, deepSim(), Config{}, n)
		defer s.close(t)
		var conns []*Conn
		var wg sync.WaitGroup
		for i := range n {
			a, b := s.dial(t, i)
			warmUp(t, b, a)
			conns = append(conns, a, b)
		}
		s.quiet()
		c := s.hub.core
		var slots []uint32
		more := c.mostStage() - c.stage.Len()
		slab, err := c.stage.Map(more)
		require.NoError(t, err)
		s.hub.enter()
		c.stage.Add(slab, more) // then none come meanwhile
		for c.stage.Free() > 0 {
			slot, _ := c.stage.Get()
			slots = append(slots, slot)
		}
		c.staging.state = refused
		s.hub.leave()
		for i := range n {
			wg.Go(func() { _, _ = conns[2*i+1].Write(make([]byte, 32<<10)) })
			wg.Go(func() { _, _ = io.ReadFull(conns[2*i], make([]byte, 32<<10)) })
		}
		require.Eventually(t, func() bool {
			s.hub.mu.Lock()
			defer s.hub.mu.Unlock()
			return c.stageLine.len() == n
		}, 5*time.Second, time.Millisecond)
		s.hub.enter()
		before := c.stats.steps
		c.freed = true // as after a completion
		s.hub.leave()
		s.hub.enter()
		steps = c.stats.steps - before
		for _, slot := range slots {
			c.stage.Put(slot)
		}
		c.freed = true
		s.hub.leave()
		wg.Wait()
		resetConns(t, conns...)
		return steps
	}
	few, many := looks(10), looks(100)
	t.Logf("%d looks for one completion with 10 peers that wait, %d with 100", few, many)
	assert.Less(t, many, 2*few+3)
}
