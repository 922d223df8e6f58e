package engine

import (
	"fmt"

	"github.com/seed202c38ff/fabricnet/framing"
)

// Receive slots. Each peer has as many as the next one, for as long as it is there: they are posted before
// they are promised to it, and whenever it has used one, that is posted again and granted anew. So what one
// peer does takes nothing from another. framing/SPEC.md, section 4, has the rules by which two sides never
// wait for each other.

// recvCredit is what the peer may use of our receive slots. The counts are cumulative and wrap around.
// seen never exceeds advertised, and advertised never exceeds granted, which is as many more than seen as
// the peer has slots, less those that are still to be posted again.
type recvCredit struct {
	granted    uint32 // slots granted
	advertised uint32 // granted, as of the last frame sent
	seen       uint32 // slots that it has used
}

// known is how many slots the peer may use as far as it knows.
func (r *recvCredit) known() int { return int(r.advertised - r.seen) }

// creditDue reports whether the peer should be told of its slots even if nothing else is to be
// sent: at least as many are new as it may have left, or it has too few left to send data.
func (r *recvCredit) creditDue() bool {
	fresh, known := int(r.granted-r.advertised), r.known()
	return fresh > 0 && (fresh >= known || known <= 1)
}

// grant promises the peer a slot that is posted again.
func (p *peer) grant() {
	if p.err == nil {
		p.granted++
		p.c.touch(p)
	}
}

// useSlot counts a receive slot that the peer has used. A peer that uses more
// than it was told of is cut off, since it could flood the endpoint; useSlot reports false
// then.
func (p *peer) useSlot() bool {
	if p.known() <= 0 {
		p.c.stats.Violations++
		p.doom(fmt.Errorf("%w: it sent more than it was allowed to", errProtocol))
		return false
	}
	p.seen++
	p.c.heard = true
	p.c.touch(p) // it may have so few left that it has to be told of its new ones
	p.tally.came++
	return true
}

// sendCredit is what we may use of the peer's receive slots. used never exceeds credit.
type sendCredit struct {
	credit uint32 // slots granted to us
	used   uint32
}

// avail is how many of the peer's slots we may use.
func (s *sendCredit) avail() uint32 { return s.credit - s.used }

// mayData reports whether n slots may be used for data. One always remains.
func (p *peer) mayData(n uint32) bool { return p.linked && p.avail() > n }

// mayCtl reports whether a control frame may be sent. The last slot is kept
// for a frame that brings the peer a new one, so that two sides that are both
// down to their last slot never wait for each other.
func (p *peer) mayCtl() bool {
	a := p.avail()
	return p.linked && (a > 1 || a == 1 && p.granted != p.advertised)
}

// tell returns the stream's credits for a frame that is being built, and notes that it tells them.
func (s *stream) tell() (window, ring uint64) {
	s.advertisedWindow, s.advertisedRing = s.promised, s.largeRel
	if l := s.inLease; l != nil {
		l.advertised = l.unread.read
	}
	return s.advertisedWindow, s.advertisedRing
}

// readSmall notes that n bytes of small data were consumed.
func (s *stream) readSmall(n int) {
	s.smallRead += uint64(n)
	s.promise()
}

// ringDue reports whether the peer should be told how much of its ring was read. That is due
// for a quarter of the ring, or for half as long as there is more to be read: where many writers
// take turns on few processors, waking one up costs more than a quarter is worth.
func (s *stream) ringDue() bool {
	l := s.inLease
	due := uint64(len(l.Ring.Bytes)) / 4
	if s.largeRead != s.largeIn {
		due *= 2
	}
	return s.largeRel-s.advertisedRing >= due || l.unread.read-l.advertised >= framing.MaxWrites/4
}
