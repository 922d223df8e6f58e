package engine

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/internal/race"
	"github.com/seed202c38ff/fabricnet/pool"
)

// deepSim is a fabric that a thousand peers can share.
func deepSim() simfabric.Config {
	sim := simfabric.TCP()
	sim.RxDepth = 8192
	return simfabric.Config{Seed: 1, Personality: sim}
}

// pump has a conn of each of these spokes write to the hub, which reads, until stop is called.
func (s *star) pump(t *testing.T, spokes ...int) (stop func()) {
	t.Helper()
	var wg sync.WaitGroup
	over := make(chan struct{})
	for _, i := range spokes {
		outer, inner := s.dial(t, i)
		wg.Go(func() {
			buf := make([]byte, 64)
			for {
				select {
				case <-over:
					assert.NoError(t, outer.Close())
					return
				default:
				}
				if _, err := outer.Write(buf); !assert.NoError(t, err) {
					return
				}
			}
		})
		wg.Go(func() {
			buf := make([]byte, 64<<10)
			for {
				if _, err := inner.Read(buf); err != nil {
					assert.NoError(t, inner.Close())
					return
				}
			}
		})
	}
	return func() {
		close(over)
		wg.Wait()
	}
}

// share returns how many of the hub's receive slots a spoke may have, and how many it is promised.
func (s *star) share(spoke int) (share, promised int) {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	p := s.hubs[spoke].p
	return p.share, p.promised()
}

// TestSharesGrow: a peer that uses all of its slots gets more, up to its share of the queue, and
// one that uses none does not.
func TestSharesGrow(t *testing.T) {
	s := newStar(t, deepSim(), Config{}, 3)
	defer s.close(t)
	for i := range 3 {
		share, promised := s.share(i)
		assert.LessOrEqual(t, share, 2*framing.MinSlots, "of peer %d, which has moved a path check", i)
		assert.LessOrEqual(t, promised, 2*framing.MinSlots)
	}
	stop := s.pump(t, 1)
	assert.Eventually(t, func() bool { share, _ := s.share(1); return share == sharedSlots }, 10*time.Second, time.Millisecond)
	stop()
	share, _ := s.share(0)
	assert.LessOrEqual(t, share, 2*framing.MinSlots)
}

// TestBusyAmongIdle: a peer that uses all of its slots gets more than twice the minimum, among as
// many idle peers as an endpoint should have.
func TestBusyAmongIdle(t *testing.T) {
	sim := deepSim()
	sim.RxDepth = 4 * sharedSlots
	s := newStar(t, sim, Config{}, 1)
	defer s.close(t)
	for range Places(sim.RxDepth) - 1 {
		s.join(t)
	}
	stop := s.pump(t, 0)
	defer stop()
	assert.Eventually(t, func() bool { _, n := s.share(0); return n > 2*framing.MinSlots }, 10*time.Second, time.Millisecond)
}

// TestIdlePeersGiveBack: when newcomers need slots, peers give back those that they do not use, and
// carry on at once when they need more again.
func TestIdlePeersGiveBack(t *testing.T) {
	sim := deepSim()
	sim.RxDepth = 128
	s := newStar(t, sim, Config{}, 3)
	defer s.close(t)
	stop := s.pump(t, 0, 1, 2)
	for i := range 3 {
		assert.Eventually(t, func() bool { _, n := s.share(i); return n > 2*framing.MinSlots }, 10*time.Second, time.Millisecond)
	}
	stop()
	n := 3
	for ; s.hub.Room() == RoomOpen && n < 100; n++ {
		s.join(t)
		s.quiet()
	}
	assert.GreaterOrEqual(t, n, sim.RxDepth/LeastSlots-1, "peers on a queue of %d", sim.RxDepth)
	assert.NotZero(t, s.hub.Stats().Recalls)
	for i := range 3 {
		share, promised := s.share(i)
		assert.Equal(t, framing.MinSlots, share)
		assert.Equal(t, framing.MinSlots, promised)
		a, b := s.dial(t, i)
		healthy(t, a, b)
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
	}
}

// TestAllBusy: when more peers are busy than there are slots for, all of them go on, since each has
// about as many as the others.
func TestAllBusy(t *testing.T) {
	const peers = 40
	sim := deepSim()
	sim.RxDepth = 8 * peers
	s := newStar(t, sim, Config{}, peers)
	defer s.close(t)
	var all []int
	for i := range peers {
		all = append(all, i)
	}
	stop := s.pump(t, all...)
	for i := range peers { // each is served while all others are busy
		a, b := s.dial(t, i)
		require.NoError(t, roundTripTo(a, b))
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
	}
	stop()
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

// TestFalseBalance: a peer that gives back slots that it was not asked for, or does not have, is
// cut off.
func TestFalseBalance(t *testing.T) {
	for name, b := range map[string]func(p *peer) framing.Balance{
		"unasked":  func(p *peer) framing.Balance { return framing.Balance{Returned: p.returned + 1} },
		"too much": func(p *peer) framing.Balance { p.recalled += 100; return framing.Balance{Returned: p.returned + 100} },
	} {
		t.Run(name, func(t *testing.T) {
			s := newStar(t, deepSim(), Config{}, 1)
			defer s.close(t)
			s.hub.enter()
			defer s.hub.leave()
			p := s.hubs[0].p
			require.ErrorIs(t, p.balance(b(p)), errProtocol)
		})
	}
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

// TestStepsWhileAllWait: while n peers wait for a send slot for data, and the slots for control
// frames are free, the cost of one event does not grow with n.
func TestStepsWhileAllWait(t *testing.T) {
	looks := func(n int) (steps uint64) {
		s := newStar(t, deepSim(), Config{}, n)
		defer s.close(t)
		var conns []*Conn
		var wg sync.WaitGroup
		var inners []*Conn
		for i := range n {
			a, b := s.dial(t, i)
			conns, inners = append(conns, a, b), append(inners, b)
		}
		s.quiet()
		c := s.hub.core
		var slots []uint32
		s.hub.enter()
		for c.tx.Free() > ctlSlots {
			slot, _ := c.tx.Get()
			slots = append(slots, slot)
		}
		s.hub.leave()
		for _, b := range inners {
			wg.Go(func() { _, _ = b.Write([]byte("x")) })
		}
		require.Eventually(t, func() bool {
			s.hub.mu.Lock()
			defer s.hub.mu.Unlock()
			return c.lines[lineWrites].len() == n
		}, 5*time.Second, time.Millisecond)
		s.hub.enter()
		before := c.stats.steps
		c.freed = true // as after a completion
		s.hub.leave()
		s.hub.enter()
		steps = c.stats.steps - before
		for _, slot := range slots {
			c.tx.Put(slot)
		}
		c.freed = true
		s.hub.leave()
		wg.Wait()
		resetConns(t, conns...)
		return steps
	}
	few, many := looks(10), looks(200)
	t.Logf("%d looks for one completion with 10 peers that wait, %d with 200", few, many)
	assert.Less(t, many, 2*few+3)
}
