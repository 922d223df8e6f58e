package engine

import (
	"bytes"
	"errors"
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

// roundTripTo moves a byte each way.
func roundTripTo(a, b *Conn) error {
	limit, got := time.Now().Add(20*time.Second), make([]byte, 2)
	err := errors.Join(a.SetDeadline(limit), b.SetDeadline(limit))
	for i, call := range []func([]byte) (int, error){a.Write, b.Write, b.Read, a.Read} {
		buf := []byte{byte(1 + i)}
		if i > 1 {
			buf = got[i-2:][:1]
		}
		_, e := call(buf)
		err = errors.Join(err, e)
	}
	if err == nil && !bytes.Equal(got, []byte{1, 2}) {
		err = fmt.Errorf("read %d", got)
	}
	return err
}

// dials is dial for n conns.
func (s *star) dials(t testing.TB, spoke, n int) (outer, inner []*Conn) {
	t.Helper()
	for range n {
		a, b := s.dial(t, spoke)
		outer, inner = append(outer, a), append(inner, b)
	}
	return outer, inner
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
		"idle conns": func(s *star, n int) []*Conn {
			outer, inner := s.dials(t, 0, n)
			return append(outer, inner...)
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
		"conns whose writers wait": func(s *star, n int) []*Conn {
			outer, inner := s.dials(t, 0, n)
			for _, c := range inner {
				go func() { _, _ = c.Write(make([]byte, 64<<10)) }()
			}
			return append(outer, inner...)
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

// steps returns how many peers and conns the hub looks at for each completion, while one conn is used among n others.
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
		more := c.mostStage() - c.stage.Len()
		slab, err := c.stage.Map(more)
		require.NoError(t, err)
		var giveBack func()
		locked(s.hub, func() {
			c.stage.Add(slab, more) // then none come meanwhile
			giveBack = c.takeStage()
		})
		for i := range n {
			wg.Go(func() { _, _ = conns[2*i+1].Write(make([]byte, 32<<10)) })
			wg.Go(func() { _, _ = io.ReadFull(conns[2*i], make([]byte, 32<<10)) })
		}
		require.Eventually(t, func() bool {
			s.hub.mu.Lock()
			defer s.hub.mu.Unlock()
			return c.stageLine.len() == n
		}, 5*time.Second, time.Millisecond)
		locked(s.hub, func() {
			steps = c.stats.steps
			c.freed = true // as after a completion
		})
		locked(s.hub, func() {
			steps = c.stats.steps - steps
			giveBack()
		})
		wg.Wait()
		resetConns(t, conns...)
		return steps
	}
	few, many := looks(10), looks(100)
	t.Logf("%d looks for one completion with 10 peers that wait, %d with 100", few, many)
	assert.Less(t, many, 2*few+3)
}
