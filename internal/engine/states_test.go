package engine

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestMoves: the tables of a stream's states are complete, never lead back, and lead to an end from
// everywhere.
func TestMoves(t *testing.T) {
	t.Run("send", func(t *testing.T) { checkMoves(t, sendMoves, sendOpen, sendClosed, sendCut) })
	t.Run("recv", func(t *testing.T) { checkMoves(t, recvMoves, recvOpen, recvCut) })
	t.Run("close", func(t *testing.T) { checkMoves(t, closeMoves, connOpening, connRemoved) })
}

func checkMoves[S, E ~uint8](t *testing.T, m moves[S, E], first S, ends ...S) {
	last := ends[len(ends)-1]
	assert.Len(t, m, int(last)+1, "a row for each state")
	reached := map[S]bool{first: true}
	for s := first; s <= last; s++ {
		ended := slices.Contains(ends, s)
		for e, next := range m[s] {
			if next == 0 {
				continue
			}
			assert.GreaterOrEqual(t, next, s, "event %d leads back from %d", e, s)
			assert.LessOrEqual(t, next, last)
			reached[next] = true
			ended = ended || slices.Contains(ends, next)
			to := s
			assert.True(t, m.move(&to, E(e)))
			assert.Equal(t, next, to)
		}
		assert.True(t, ended, "the end cannot be reached from %d", s)
		stays := s
		assert.False(t, m.move(&stays, E(200)), "an event that no table has")
		assert.Equal(t, s, stays)
	}
	for s := first; s <= last; s++ {
		assert.True(t, reached[s], "state %d cannot be reached", s)
	}
}

// TestStreamStates: what the states mean for the users of both ends. Each case lists the events of
// a conn's life, and what may be done after them.
func TestStreamStates(t *testing.T) {
	type view struct{ mayData, closed, peerClosed, quiet, discarding bool }
	look := func(s *stream) view { return view{s.mayData(), s.closed(), s.peerClosed(), s.quiet(), s.discarding()} }
	for name, life := range map[string]struct {
		send  []sendEvent
		recv  []recvEvent
		close []closeEvent
		want  view
	}{
		"accepted":                        {close: []closeEvent{evAccepted}, want: view{mayData: true}},
		"half closed by us":               {close: []closeEvent{evAccepted}, send: []sendEvent{evCloseWrite, evAcked}},
		"half closed by the peer":         {close: []closeEvent{evAccepted}, recv: []recvEvent{evFin, evComplete}, want: view{mayData: true}},
		"closed by the peer":              {close: []closeEvent{evAccepted, evPeerClosed}, recv: []recvEvent{evFin}, want: view{peerClosed: true}},
		"closed before the Accept":        {close: []closeEvent{evPeerClosed, evAccepted}, want: view{peerClosed: true}},
		"closed, and not answered":        {close: []closeEvent{evAccepted, evUserClosed}, send: []sendEvent{evClose, evAcked}, want: view{closed: true, discarding: true}},
		"closed, and answered":            {close: []closeEvent{evAccepted, evUserClosed}, send: []sendEvent{evClose, evCloseAcked}, want: view{closed: true, quiet: true, discarding: true}},
		"given up, writes in flight":      {close: []closeEvent{evUserClosed}, send: []sendEvent{evAbort, evCloseAcked}, want: view{closed: true, discarding: true}},
		"given up, and answered":          {close: []closeEvent{evUserClosed}, send: []sendEvent{evAbort, evResetSent, evCloseAcked}, want: view{closed: true, quiet: true, discarding: true}},
		"reset by the peer, all received": {close: []closeEvent{evAccepted, evPeerClosed}, send: []sendEvent{evRefused}, recv: []recvEvent{evFin, evComplete, evCut}, want: view{peerClosed: true, quiet: true}},
	} {
		s := &stream{closing: connOpening}
		for _, e := range life.close {
			closeMoves.move(&s.closing, e)
		}
		for _, e := range life.send {
			sendMoves.move(&s.send, e)
		}
		for _, e := range life.recv {
			recvMoves.move(&s.recv, e)
		}
		assert.Equal(t, life.want, look(s), name)
	}
}
