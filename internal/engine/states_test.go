package engine

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestMoves: the table of a stream's sending states is complete, never leads back, and always leads to an end.
func TestMoves(t *testing.T) {
	assert.Len(t, sendMoves, int(sendCut)+1, "a row for each state")
	ends := []sendState{sendClosed, sendCut}
	reached := map[sendState]bool{sendOpen: true}
	for s := sendOpen; s <= sendCut; s++ {
		ended := slices.Contains(ends, s)
		for e, next := range sendMoves[s] {
			to := s
			assert.Equal(t, next != sendOpen, to.move(sendEvent(e)), "event %d, from %d", e, s)
			if next == sendOpen {
				assert.Equal(t, s, to)
				continue
			}
			assert.Equal(t, next, to)
			assert.GreaterOrEqual(t, next, s, "event %d leads back from %d", e, s)
			assert.LessOrEqual(t, next, sendCut)
			reached[next] = true
			ended = ended || slices.Contains(ends, next)
		}
		assert.True(t, ended, "the end cannot be reached from %d", s)
	}
	for s := sendOpen; s <= sendCut; s++ {
		assert.True(t, reached[s], "state %d cannot be reached", s)
	}
}

// TestStreamStates: what the states mean for the users of both ends. Each case lists the events of
// a conn's life, and what may be done after them.
func TestStreamStates(t *testing.T) {
	type view struct{ mayData, closed, peerClosed, quiet, discarding bool }
	look := func(s *stream) view { return view{s.mayData(), s.closed(), s.peerClosed, s.quiet(), s.discarding()} }
	now := time.Unix(1e9, 0)
	for name, life := range map[string]struct {
		s    stream
		send []sendEvent
		want view
	}{
		"accepted":                        {want: view{mayData: true}},
		"half closed by us":               {send: []sendEvent{evCloseWrite, evAcked}},
		"half closed by the peer":         {s: stream{receiving: receiving{recv: recvEOF}}, want: view{mayData: true}},
		"closed by the peer":              {s: stream{peerClosed: true, receiving: receiving{recv: recvFin}}, want: view{peerClosed: true}},
		"closed, and not answered":        {s: stream{closedAt: now}, send: []sendEvent{evClose, evAcked}, want: view{closed: true, discarding: true}},
		"closed, and answered":            {s: stream{closedAt: now}, send: []sendEvent{evClose, evCloseAcked}, want: view{closed: true, quiet: true, discarding: true}},
		"given up, writes in flight":      {s: stream{closedAt: now}, send: []sendEvent{evAbort, evCloseAcked}, want: view{closed: true, discarding: true}},
		"given up, and answered":          {s: stream{closedAt: now}, send: []sendEvent{evAbort, evResetSent, evCloseAcked}, want: view{closed: true, quiet: true, discarding: true}},
		"reset by the peer, all received": {s: stream{peerClosed: true, receiving: receiving{recv: recvEOF}}, send: []sendEvent{evRefused}, want: view{peerClosed: true, quiet: true}},
		"removed":                         {s: stream{at: removed}, want: view{closed: true, discarding: true}},
	} {
		s := &life.s
		for _, e := range life.send {
			s.send.move(e)
		}
		assert.Equal(t, life.want, look(s), name)
	}
}

// TestClosedBeforeAccept: an Accept that comes late does not take back what overtook it.
func TestClosedBeforeAccept(t *testing.T) {
	c, _ := lonelyCore(t)
	p, err := newPeerAlone(c, [16]byte{1}, PeerConfig{})
	require.NoError(t, err)
	s, err := p.open(7)
	require.NoError(t, err)
	require.True(t, s.opening() && s.unanswered())
	require.NoError(t, s.finished(0, true))
	require.True(t, s.unanswered() && s.peerClosed)
	require.False(t, s.opening() || s.mayData())
	require.NoError(t, s.accepted([]byte{1, 0}))
	require.True(t, s.peerClosed)
	require.False(t, s.opening() || s.unanswered() || s.mayData())
}
