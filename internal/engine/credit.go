package engine

import (
	"container/list"
	"fmt"

	"github.com/seed202c38ff/fabricnet/framing"
)

// Receive slots, and how peers come to have more or fewer of them. The rules and their proof
// are in framing/SPEC.md, section 4.
//
// A peer starts with the fewest slots that it can work with. Whenever it has used so many
// that only a Credit frame can tell it of new ones, its share doubles, as far as the other
// peers leave enough. When others need slots, idle peers are asked to give back what they have
// beyond the minimum, the one that has been idle longest first.

// receives is the state of an endpoint's receive slots. No more are promised than are posted:
// some providers drop a message that finds no receive, others send it again and again.
type receives struct {
	sharable int         // how many there may be, until peers come that need more
	ready    int         // receives that the fabric has and in which nothing has arrived
	promised int         // slots that peers may still use
	owed     int         // slots that peers lack to have the minimum; promised once they are posted
	kept     int         // slots in which frames wait for what precedes them
	taken    uint64      // slots taken by peers, ever: it measures how long a peer has been idle
	hungry   fifo[*peer] // peers with less than the minimum, since there was nothing to promise
	// recent are the peers whose share is more than the minimum, with the one that has used a
	// slot last at the end.
	recent list.List
}

// recvCredit is what the peer may use of our receive slots. Those of type uint32 are cumulative
// and wrap around. seen + returned never exceeds advertised, and advertised never exceeds granted.
type recvCredit struct {
	share      int           // how many it may have
	granted    uint32        // slots granted
	advertised uint32        // granted, as of the last frame sent
	seen       uint32        // slots that it has used
	kept       int           // of these, those in which frames wait for what precedes them
	returned   uint32        // slots that it has given back
	recalled   uint32        // slots that it has been asked to give back
	recallDue  bool          // it has to be told of that
	hungry     bool          // listed in receives.hungry
	usedAt     uint64        // receives.taken when it last used one
	use        *list.Element // in receives.recent
}

// LeastSlots is how many receives an endpoint needs for each peer.
const LeastSlots = framing.MinSlots

// promised is how many slots the peer may still use.
func (r *recvCredit) promised() int { return int(r.granted - r.seen - r.returned) }

// known is how many of these it has been told of.
func (r *recvCredit) known() int { return int(r.advertised - r.seen - r.returned) }

// has is how many slots the peer has, those in which its frames wait included.
func (r *recvCredit) has() int { return r.promised() + r.kept }

// short is how many slots the peer lacks to have the minimum.
func (r *recvCredit) short() int { return max(0, framing.MinSlots-r.has()) }

// keeps notes that n more frames of the peer wait in their slots, or -n fewer.
func (p *peer) keeps(n int) {
	c := p.c
	c.kept += n
	if p.life >= peerReaped {
		p.kept += n
		return
	}
	c.owed -= p.short()
	p.kept += n
	c.owed += p.short()
}

// creditDue reports whether the peer should be told of its slots even if nothing else is to be
// sent: at least as many are new as it may have left, or it has too few left to send data.
func (r *recvCredit) creditDue() bool {
	fresh, known := int(r.granted-r.advertised), r.known()
	return fresh > 0 && (fresh >= known || known <= 1)
}

// balanceDue reports whether the peer should be told what it is asked to give back, or what
// we give back.
func (p *peer) balanceDue() bool { return p.recallDue || p.spareSlots() > 0 }

// spareSlots is how many of the slots that the peer wants back can be given back now. The rest
// are kept so that we can go on.
func (p *peer) spareSlots() uint32 {
	n, avail, least := framing.SlotsAfter(p.asked, p.given), p.avail(), uint32(framing.MinSlots)
	if n <= 0 || avail <= least {
		return 0
	}
	return min(uint32(n), avail-least)
}

// tellBalance returns the balance for a Credit frame that is being built. Our limit is lowered
// here, where it is certain that the peer will be told.
func (p *peer) tellBalance() framing.Balance {
	p.recallDue = false
	p.given += p.spareSlots()
	return framing.Balance{Returned: p.given, Recalled: p.recalled}
}

// mostRecvs is how many receive slots there may be. For new peers that is as many as the
// provider's queue takes, but the peers that are there share no more than an eighth of the budget.
func (c *core) mostRecvs() int { return max(c.rx.Len(), c.sharable) }

// limit is how many slots the peer may have now: no more than half of what there would be
// for it if it had none, and an eighth of all is left for new peers.
func (c *core) limit(p *peer) int {
	if p.share <= framing.MinSlots {
		return framing.MinSlots
	}
	most := c.mostRecvs()
	return max(framing.MinSlots, min(p.share, (most-most/8-c.spoken()-c.kept+p.has())/2))
}

// spoken is how many receives are promised or owed.
func (c *core) spoken() int { return c.promised + c.owed }

// grant promises the peer as many of the posted receives as it may have.
func (c *core) grant(p *peer) {
	if p.err != nil {
		return
	}
	free, least := c.ready-c.promised, p.short()
	if n := min(free, max(least, min(c.limit(p)-p.has(), free-c.owed+least))); n > 0 {
		p.granted += uint32(n)
		c.promised += n
		c.owed -= least - p.short()
		c.touch(p)
	}
	if p.short() > 0 && !p.hungry {
		p.hungry = true
		c.hungry.push(p)
	}
}

// feed grants what has become free to peers that have less than the minimum.
func (c *core) feed() {
	for c.hungry.len() > 0 && c.ready > c.promised {
		p := c.hungry.pop()
		p.hungry = false
		c.stats.steps++
		c.grant(p)
	}
}

// grow doubles the share of a peer that uses all it has.
func (c *core) grow(p *peer) {
	if p.cfg.Unproven || c.attr.PerPeer {
		return
	}
	p.share = min(2*p.share, max(p.share, min(c.cfg.PeerSlots, sharedSlots)))
	c.usedNow(p)
	switch limit := c.limit(p); {
	case limit < p.share:
		c.recall(c.taken - uint64(c.mostRecvs())/2)
	case limit-p.has() > c.ready-c.spoken() && c.rx.Len() < c.most(&c.receiving):
		c.want(&c.receiving)
	}
	c.grant(p)
}

// usedNow notes that a peer is using its slots, so it becomes the last to be asked for them.
func (c *core) usedNow(p *peer) {
	p.usedAt = c.taken
	switch {
	case p.use != nil:
		c.recent.MoveToBack(p.use)
	case p.share > framing.MinSlots:
		p.use = c.recent.PushBack(p)
	}
}

// forget takes a peer out of recent.
func (c *core) forget(p *peer) {
	if p.use != nil {
		c.recent.Remove(p.use)
		p.use = nil
	}
}

// recall asks some peers for what they have beyond the minimum: those that have been idle
// longest, if they have used no slot since receives.taken stood at since.
func (c *core) recall(since uint64) {
	for range recallAtOnce {
		oldest := c.recent.Front()
		if oldest == nil {
			return
		}
		p := oldest.Value.(*peer)
		if int64(p.usedAt-since) > 0 {
			return
		}
		c.forget(p)
		c.stats.steps++
		p.share = framing.MinSlots
		if n := p.promised() - p.share; n > 0 {
			if target := p.returned + uint32(n); framing.SlotsAfter(target, p.recalled) > 0 {
				p.recalled = target
			}
			p.recallDue = true
			c.stats.Recalls++
			c.touch(p)
		}
	}
}

// balance takes in the balance of a Credit frame: what the peer has given back, and what it
// wants back.
func (p *peer) balance(b framing.Balance) error {
	if n := framing.SlotsAfter(b.Returned, p.returned); n > 0 {
		if framing.SlotsAfter(b.Returned, p.recalled) > 0 || int(n) > p.known() {
			return fmt.Errorf("%w: it gives back receive slots which it has not", errProtocol)
		}
		p.c.owed -= p.short()
		p.returned = b.Returned
		p.c.promised -= int(n)
		p.c.owed += p.short()
		p.c.grant(p)
		p.c.feed()
		p.c.updateRoom()
	}
	if framing.SlotsAfter(b.Recalled, p.asked) > 0 {
		p.asked = b.Recalled
	}
	return nil
}

// useSlot counts a receive slot that the peer has used. A peer that uses more
// than it was told of is cut off, since it could flood the endpoint; useSlot reports false
// then.
func (p *peer) useSlot() bool {
	c := p.c
	if p.known() <= 0 {
		c.stats.Violations++
		p.doom(fmt.Errorf("%w: it sent more than it was allowed to", errProtocol))
		return false
	}
	c.owed -= p.short()
	p.seen++
	c.promised--
	c.owed += p.short()
	c.taken++
	c.usedNow(p)
	c.touch(p) // it may have so few left that it has to be told of its new ones
	p.tally.came++
	return true
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
