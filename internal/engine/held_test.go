package engine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/pool"
)

// hoard has a spoke send frames ahead of their turn, for as long as it gets slots for them. Other
// frames, in between, bring it new slots.
func (s *star) hoard(spoke int, out *stream) {
	e, p := s.spokes[spoke], s.peers[spoke].p
	pos := out.sndNxt + 1
	for range 200 {
		e.enter()
		for p.mayData(1) {
			f := ctlFrame{t: framing.TypeData, stream: out.id, pos: pos}
			if p.mayData(2) {
				pos += 2
			} else {
				f = ctlFrame{t: framing.TypeFinAck, stream: 1 << 20} // of no stream: its slot is free at once
			}
			if !p.frame(&f, nil, []byte("x")[:pos%2], false) {
				break
			}
		}
		e.core.push(p)
		e.leave()
		time.Sleep(time.Millisecond)
	}
}

// TestHoardedSlots: frames that come ahead of their turn take no more slots than a peer may have,
// and newcomers are not told that there is room where there is none.
func TestHoardedSlots(t *testing.T) {
	sim := deepSim()
	sim.RxDepth = 256
	s := newStar(t, sim, Config{}, 1)
	defer s.close(t)
	outer, inner := s.dial(t, 0)
	s.hoard(0, outer.stream)
	s.hub.mu.Lock()
	held := len(inner.stream.held)
	s.hub.mu.Unlock()
	assert.LessOrEqual(t, held, sharedSlots, "of %d receives", sim.RxDepth)
	for {
		if _, err := s.hub.NewPeer(PeerConfig{}); err != nil {
			require.ErrorIs(t, err, ErrFull)
			break
		}
	}
	assert.Equal(t, RoomFull, s.hub.Room())
	resetConns(t, outer, inner)
}

// TestIdleSlotsForNewcomers: where memory is short, idle peers give newcomers the slots that they
// do not use.
func TestIdleSlotsForNewcomers(t *testing.T) {
	budget := pool.NewBudget(64 << 20)
	s := newStar(t, deepSim(), Config{Budget: budget}, 0)
	defer s.close(t)
	s.cfg.Budget = nil // the spokes have their own
	for range 3 {
		s.join(t)
	}
	stop := s.pump(t, 0, 1, 2)
	for i := range 3 {
		assert.Eventually(t, func() bool { _, n := s.share(i); return n > 4*framing.MinSlots }, 10*time.Second, time.Millisecond)
	}
	stop()
	s.quiet()
	rest := budget.Stats().Limit - budget.Stats().Used
	require.NoError(t, budget.Reserve(rest))
	defer budget.Release(rest)
	for range 200 { // some get slots that nobody was promised
		if _, err := s.hub.NewPeer(PeerConfig{}); err != nil {
			require.ErrorIs(t, err, ErrMemory)
			time.Sleep(time.Millisecond)
		}
	}
	for i := range 3 {
		_, promised := s.share(i)
		assert.Equal(t, framing.MinSlots, promised, "of idle peer %d", i)
	}
}
