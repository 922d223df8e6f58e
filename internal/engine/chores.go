package engine

import (
	"fmt"
	"slices"
	"time"
)

// chores does what time alone makes due, about once in choreTime, and reports
// whether it wants to be called again.
func (c *core) chores() (again bool) {
	c.retry()
	c.posted = false
	c.postLate()
	c.askAgain()
	if c.outOfStage() {
		c.wantStage()
	}
	c.wantSends() // what was asked for may have been refused
	c.probes.evict(c.now())
	for _, p := range slices.Clone(c.order) { // some may end
		if p.err != nil {
			continue
		}
		p.checkCloses()
		p.trimMapped()
		if p.checkProgress() {
			c.fail(p, fmt.Errorf("%w for %v", ErrStuck, p.waited))
		}
		if p.err == nil && p.checkPending() {
			c.fail(p, fmt.Errorf("%w for %v", ErrStarved, p.starved))
		}
		if p.err == nil && (p.flying > 0 || len(p.out) > 0 || p.pends > 0) {
			again = true
		}
	}
	again = c.reclaim() || again
	if c.looksLeft > 0 {
		c.looksLeft--
		c.makeUp()
	}
	if c.mayTrim() {
		c.discard(c.lend.Trim(0)...) // idle conns own no registered memory
	}
	c.trimStage()
	c.trimRings()
	c.discard(c.leftover...)
	c.leftover = nil
	c.updateRoom() // receives that were not there may be back
	return again || c.failing.reused > 0 || c.unusedMaps > 0 || c.releasing() || c.looksLeft > 0 || c.lingering > 0 || len(c.probes.waiting) > 0
}

// checkProgress counts the looks in a row at which nothing had moved that was sent to
// the peer, and reports whether it has been so for too long: all peers draw on what
// it holds, and other threads may answer heartbeats for it. It goes by the number of
// looks since this process may have been stopped itself.
func (p *peer) checkProgress() (dead bool) {
	switch {
	case p.moved || p.flying == 0 && len(p.out) == 0:
		p.moved, p.waited = false, 0
		return false
	case p.flying == 0 && !p.mayFly():
		return false // others have all that it waits for
	default:
		p.waited += choreTime
		return p.waited > p.c.cfg.DeadAfter
	}
}

// checkPending counts the looks in a row at which data waited for receive slots of the peer
// and none had left, and reports whether it has been so for too long: a peer that lives owes
// some, whatever its users do (SPEC.md section 4), and such data keeps send slots. On a slow
// path they come behind the writes of either side. The first look says only that data waits.
// What copies of our own hold the peer does not owe.
func (p *peer) checkPending() (dead bool) {
	if p.pending.len() == 0 || !p.linked || p.copies > 0 {
		p.starved = -choreTime
		return false
	}
	if n := p.sentSmall + p.landed + p.beats.done + p.copied; n != p.carried {
		p.carried, p.starved = n, -choreTime
	}
	p.starved += choreTime
	return p.starved > p.c.cfg.DeadAfter
}

// busy reports that chores has something to watch.
func (c *core) busy() bool {
	return c.failing.reused > 0 || c.posted || c.unusedMaps > 0 || c.pends > 0 || c.looksLeft > 0 || len(c.probes.waiting) > 0 || c.leases.Stats().Out+c.rings.claims+len(c.rings.spare) > 0 || c.releasing() || c.mayTrim() || c.mayTrimStage() || len(c.leftover) > 0 ||
		c.hasFreeRings() || c.outOfStage() || c.lingering > 0 || c.stuck()
}

// outOfStage reports writers that wait while all staging memory is in use, perhaps for ever.
func (c *core) outOfStage() bool { return c.blocked > 0 && c.stage.Len() > 0 && c.stage.Free() == 0 }

// mayTrim reports memory for Buffers of which none is in use. One that is on its way
// to a dead peer may be in use for as long as the endpoint is open.
func (c *core) mayTrim() bool {
	s := c.lend.Stats()
	return s.Slabs > 0 && s.Blocks == 0
}

// mayTrimStage reports staging memory of which none is in use, now.
func (c *core) mayTrimStage() bool {
	return c.stage.Len() > 0 && c.stage.Free() == c.stage.Len() && c.blocked == 0
}

// trimStage gives staging memory back of which none has been used since it was called last.
func (c *core) trimStage() {
	if c.mayTrimStage() && !c.stageUsed {
		c.discard(c.stage.Trim()...)
		c.wakeStagers()
	}
	c.stageUsed = false
}

// choreTime is the grain of everything that time makes due: idle leases are
// taken back after one to two of it.
const choreTime = time.Second
