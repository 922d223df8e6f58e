package engine

import (
	"fmt"
	"runtime"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/pool"
)

// Receive slots, and how peers come to have more or fewer of them. The rules and their proof
// are in framing/SPEC.md, section 4.
//
// A peer starts with the fewest slots that it can work with. Whenever it has used so many
// that only a Credit frame can tell it of new ones, its share doubles, as far as others
// leave some. A peer that uses none is asked for what it has beyond the least when others
// need them, and the one that has been idle longest is asked first.

// receives is how it stands with an endpoint's receive slots. No more are promised than are
// posted: some providers drop what finds no receive, others send it again and again.
type receives struct {
	sharable int     // how many there may be, before peers have come that need more
	ready    int     // receives that the fabric has, and nothing has arrived in
	promised int     // to peers: what they may still use, and one each for heartbeats
	owed     int     // that they are short of to have the least; will be promised when posted
	taken    uint64  // by peers, ever: how long a peer is idle is measured by it
	hungry   []*peer // that have less than the least, since there was nothing to promise
	// recent is the peer that used a slot last, of those whose share is more than the least.
	// They form a ring, in which the one before it has been idle longest.
	recent *peer
}

// recvCredit is what the peer may use of our receive slots. All counters are cumulative and
// wrap; seen and returned together never pass told, nor told granted.
type recvCredit struct {
	share        int    // how many it may have
	granted      uint32 // slots granted
	told         uint32 // granted, as of the last frame sent
	seen         uint32 // slots that it used
	returned     uint32 // slots that it gave back
	recalled     uint32 // slots that it was asked to give back
	recallDue    bool   // it is to hear of that
	hungry       bool   // listed in receives.hungry
	usedAt       uint64 // receives.taken when it used one last
	older, newer *peer  // in the ring of receives.recent
}

// sendCredit is what we may use of the peer's receive slots. Used and given together never
// pass credit.
type sendCredit struct {
	credit framing.SlotCursor // slots granted to us
	used   uint32
	given  uint32 // given back, as the peer was told
	asked  uint32 // that it wants to be given back
}

const (
	// beatSlots is how many receive slots each peer has for heartbeats, which take no credit.
	beatSlots = 1
	// LeastSlots is how many receives an endpoint needs for each peer.
	LeastSlots = framing.MinSlots + beatSlots
	// recvStep is how many receive slots are mapped at a time, where peers share them.
	recvStep = 32
	// recallAtOnce is how many peers are asked at a time for what they do not use.
	recallAtOnce = 2
)

// promised is how many slots the peer may still use.
func (r *recvCredit) promised() int { return int(r.granted - r.seen - r.returned) }

// known is how many of these it has been told of.
func (r *recvCredit) known() int { return int(r.told - r.seen - r.returned) }

// short is how many slots the peer lacks to have the least.
func (r *recvCredit) short() int { return max(0, framing.MinSlots-r.promised()) }

// creditDue reports that the peer should be told of its slots even if nothing else is to be
// sent: as many are new as it may have left, or it has too few left to send data.
func (r *recvCredit) creditDue() bool {
	fresh, known := int(r.granted-r.told), r.known()
	return fresh > 0 && (fresh >= known || known <= 1)
}

// balanceDue reports that the peer should hear what it is asked to give back, or what we
// give.
func (p *peer) balanceDue() bool { return p.recallDue || p.spareSlots() > 0 }

// spareSlots is how many slots there are to give back of those that the peer has asked for.
// What is kept lets us go on.
func (s *sendCredit) spareSlots() uint32 {
	n, avail := framing.SlotsAfter(s.asked, s.given), s.avail()
	if n <= 0 || avail <= framing.MinSlots {
		return 0
	}
	return min(uint32(n), avail-framing.MinSlots)
}

// tellBalance is what a Credit frame that is being built says besides. The limit is lowered
// here, where it is certain that the peer hears of it.
func (p *peer) tellBalance() framing.Balance {
	p.recallDue = false
	p.given += p.spareSlots()
	return framing.Balance{Returned: p.given, Recalled: p.recalled}
}

// avail is how many slots of the peer's are ours to use.
func (s *sendCredit) avail() uint32 { return uint32(s.credit) - s.used - s.given }

// mayData reports whether n slots may be used for data. One remains.
func (p *peer) mayData(n uint32) bool { return p.linked && p.avail() > n }

// mayCtl reports whether a control frame may be sent. The last slot is kept
// for a frame that brings the peer a new one: two sides that are both down to
// it can then never wait for each other.
func (p *peer) mayCtl() bool {
	a := p.avail()
	return p.linked && (a > 1 || a == 1 && p.granted != p.told)
}

// mostRecvs is how many receive slots there may be: peers that come get what the provider's
// queue takes, but those that are there share out no more than an eighth of the budget.
func (c *core) mostRecvs() int { return max(c.rx.Len(), c.sharable) }

// limit is how many slots the peer may have now: no more than half of what there would be
// for it if it had none, and an eighth of all is for peers that come.
func (c *core) limit(p *peer) int {
	if p.share <= framing.MinSlots {
		return framing.MinSlots
	}
	most := c.mostRecvs()
	return max(framing.MinSlots, min(p.share, (most-most/8-c.spoken()+p.promised())/2))
}

// spoken is how many receives are promised, or will be.
func (c *core) spoken() int { return c.promised + c.owed }

// grant promises the peer what it may have of the receives that are posted.
func (c *core) grant(p *peer) {
	if p.err != nil {
		return
	}
	free, least := c.ready-c.promised, p.short()
	if n := min(free, max(least, min(c.limit(p)-p.promised(), free-c.owed+least))); n > 0 {
		p.granted += uint32(n)
		c.promised += n
		c.owed -= least - p.short()
		c.touch(p)
	}
	if p.short() > 0 && !p.hungry {
		p.hungry = true
		c.hungry = append(c.hungry, p)
	}
}

// feed grants peers that have less than the least what has become free.
func (c *core) feed() {
	for len(c.hungry) > 0 && c.ready > c.promised {
		p := c.hungry[0]
		c.hungry = c.hungry[1:]
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
	case limit-p.promised() > c.ready-c.spoken() && c.rx.Len() < c.most(&c.receiving):
		c.want(&c.receiving)
	}
	c.grant(p)
}

// usedNow notes that a peer uses its slots: it is the last to be asked for them.
func (c *core) usedNow(p *peer) {
	p.usedAt = c.taken
	if p.share <= framing.MinSlots || c.recent == p {
		return
	}
	c.forget(p)
	if q := c.recent; q == nil {
		p.older, p.newer = p, p
	} else {
		p.older, p.newer = q, q.newer
		q.newer.older, q.newer = p, p
	}
	c.recent = p
}

// forget takes a peer out of the order of last use.
func (c *core) forget(p *peer) {
	if p.older == nil {
		return
	}
	if c.recent == p {
		c.recent = p.older
	}
	if c.recent == p {
		c.recent = nil
	}
	p.older.newer, p.newer.older = p.newer, p.older
	p.older, p.newer = nil, nil
}

// recall asks some peers for what they have beyond the least: those that have been idle
// longest, and have used nothing since so many slots were taken.
func (c *core) recall(since uint64) {
	for range recallAtOnce {
		if c.recent == nil || int64(c.recent.newer.usedAt-since) > 0 {
			return
		}
		p := c.recent.newer // the oldest: it is a ring
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

// balance takes in what a Credit frame says besides: what the peer has given back, and what
// it asks for.
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
// than it was told of is cut off: it could flood the endpoint. odd is the epoch to which
// belongs what has used the slot.
func (p *peer) useSlot(odd bool) bool {
	c := p.c
	if p.known() <= 0 {
		c.stats.Violations++
		c.fail(p, fmt.Errorf("%w: it sent more than it was allowed to", errProtocol))
		return false
	}
	c.owed -= p.short()
	p.seen++
	c.promised--
	c.owed += p.short()
	c.taken++
	c.usedNow(p)
	c.touch(p) // it may have so few left that it is to be told of those it has got
	p.counted(odd)
	return true
}

// repost posts a receive slot again. p, if any, has used it, and is granted another one
// once it is really posted.
func (c *core) repost(slot uint32, p *peer) {
	if c.err != nil {
		return
	}
	c.owners = append(c.owners, p)
	c.recvs = append(c.recvs, fabric.Op{
		Kind: fabric.Recv, Tag: slot, Buf: c.rx.Bytes(slot), Desc: c.rx.Desc(slot),
	})
	c.urgent = c.urgent || p == nil || p.known() <= 2*len(c.recvs)
}

// makeRoom sees to it that there are n receives which no peer was promised. It is called
// with the endpoint locked, by one goroutine at a time, and gives the lock up to map them.
func (e *Endpoint) makeRoom(n int) error {
	c := e.core
	for c.err == nil && c.ready-c.spoken() < n {
		if len(c.recvs) > 0 {
			if !e.settleRecvs() {
				return fmt.Errorf("provider %s: %w", c.attr.Provider, errRecvs)
			}
			continue
		}
		more := c.attr.RxDepth - c.rx.Len()
		if more <= 0 {
			c.recall(c.taken)
			return fmt.Errorf("provider %s: receive queue of %d is shared by %d peers and %w", c.attr.Provider, c.attr.RxDepth, len(c.peers), ErrFull)
		}
		if !c.attr.PerPeer {
			more = min(more, max(n, recvStep))
		} else {
			more = min(more, n)
		}
		if err := e.mapRecvs(more); err == nil {
			continue
		}
		if err := e.mapRecvs(n); err != nil {
			return fmt.Errorf("%w: no receive slots for another peer (%d posted)", ErrMemory, c.rx.Len())
		}
	}
	return c.err
}

func (e *Endpoint) mapRecvs(n int) error {
	c := e.core
	slab, err := e.mapSlab(func() (*pool.Slab, error) { return c.rx.Map(n) })
	if err == nil {
		c.rx.Add(slab, n)
		c.postFree()
	}
	return err
}

// postFree posts the receive slots that are new.
func (c *core) postFree() {
	for slot, ok := c.rx.Get(); ok; slot, ok = c.rx.Get() {
		c.repost(slot, nil)
	}
	c.postRecvs()
}

// settleRecvs waits until all receives are posted, which peers must not be promised
// before. The fabric may take none: it reports false then.
func (e *Endpoint) settleRecvs() bool {
	for range 1000 {
		if len(e.core.recvs) == 0 {
			return e.core.err == nil
		}
		e.leave()
		runtime.Gosched()
		e.enter()
		e.core.postRecvs()
	}
	return false
}
