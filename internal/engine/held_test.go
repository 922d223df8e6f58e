package engine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/framing"
)

// hoard has a spoke send frames that come before their turn, with others between them that
// bring it new slots, for as long as it gets any.
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

// TestHoardedSlots: frames before their turn take no more slots than a peer may have, and
// newcomers are not told that there is room where there is none.
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
	for _, c := range []*Conn{outer, inner} {
		require.NoError(t, c.SetLinger(0))
		require.NoError(t, c.Close())
	}
}
