package engine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/framing"
)

// closesAlone returns a peer on a core of its own, a function that takes an Open of the peer's, and
// one that moves the clock on and checks the closes.
func closesAlone(t *testing.T) (p *peer, open func(id uint32) *stream, later func(time.Duration)) {
	c, _ := lonelyCore(t)
	now := time.Unix(1e9, 0)
	c.clock = func() time.Time { return now }
	p, err := newPeerAlone(c, [16]byte{1}, PeerConfig{Accept: func(*Conn, uint32) (uint16, framing.ResetCode) { return anyPort, 0 }})
	require.NoError(t, err)
	open = func(id uint32) *stream {
		payload := [framing.OpenSize]byte{1}
		require.NoError(t, p.opened(&framing.Header{Type: framing.TypeOpen, Stream: id}, payload[:]))
		return p.streams[id]
	}
	later = func(d time.Duration) {
		now, c.at = now.Add(d), time.Time{}
		p.checkCloses()
	}
	return p, open, later
}

// TestResetsOfTheMoment: conns that were reset just now, and cannot be answered yet, keep nobody from opening more.
func TestResetsOfTheMoment(t *testing.T) {
	_, open, later := closesAlone(t)
	for id := uint32(1); id <= maxUnanswered+1; id++ {
		open(id).abort()
	}
	later(0)
	assert.NotNil(t, open(1000), "the peer has had no time to answer")
}

// TestUnansweredClosesOfATalker: a peer that keeps sending something, but answers no close, cannot
// make this side keep the windows of more and more conns.
func TestUnansweredClosesOfATalker(t *testing.T) {
	p, open, later := closesAlone(t)
	for id := uint32(1); id <= 2000; id++ {
		s := open(id)
		if s == nil {
			break
		}
		s.close()
		p.seen++ // it has sent a frame
		p.granted++
		later(DefaultDeadAfter / 3)
	}
	assert.Less(t, len(p.list), 2*maxUnanswered, "conns that were closed, of which each keeps %d bytes", p.list[0].heap.bytes())
}
