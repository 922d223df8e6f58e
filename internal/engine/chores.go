package engine

import (
	"fmt"
	"slices"
	"time"
)

// chores does what only time makes due, about once every choreTime as long as the endpoint is busy.
func (c *core) chores() {
	c.retry()
	c.posted = false
	c.postLate()
	c.staging.again()
	if c.releasing() {
		c.want(&c.quarantine.supply)
	}
	if c.outOfStage() {
		c.wantStage()
	}
	for _, p := range c.order {
		p.checkCloses()
		p.trimMapped()
		if p.checkProgress() {
			p.doom(fmt.Errorf("%w for %v", ErrStuck, p.waited))
		}
		if p.checkPending() {
			p.doom(fmt.Errorf("%w for %v", ErrStarved, p.starved))
		}
		c.posted = c.posted || p.flying > 0 || len(p.out) > 0
	}
	c.reclaim()
	if c.mayTrim() {
		c.discard(c.lend.Trim(0)...) // idle conns own no registered memory
	}
	c.trimStage()
	c.dropCheckRings()
	c.trimRings()
	c.discard(c.leftover...)
	c.leftover = nil
	c.updateTakes()
}

// checkProgress counts the looks in a row at which nothing that was sent to the peer had
// moved, and reports whether that has gone on for too long: the peer holds what all peers
// share, and other threads of its process may still answer heartbeats. It counts looks rather
// than time, since this process may have been stopped itself.
func (p *peer) checkProgress() (dead bool) {
	if p.moved || p.flying == 0 && len(p.out) == 0 {
		p.moved, p.waited = false, 0
		return false
	}
	p.waited += choreTime
	return p.waited > p.c.cfg.DeadAfter
}

// checkPending counts the looks in a row at which data waited for receive slots of the peer
// and none of it had left, and reports whether that has gone on for too long: a live peer owes
// some slots, whatever its users do (SPEC.md section 4), and data that waits holds send slots.
// On a slow path the receive slots come behind the data of either side, so that counts as
// progress. The first look only tells that data waits.
func (p *peer) checkPending() (dead bool) {
	if p.pending.len() == 0 || !p.linked {
		p.starved = -choreTime
		return false
	}
	if n := p.sentSmall + p.landed + p.completed + p.copied; n != p.carried {
		p.carried, p.starved = n, -choreTime
	}
	p.starved += choreTime
	return p.starved > p.c.cfg.DeadAfter
}

// busy reports whether chores has something to watch.
func (c *core) busy() bool {
	return c.posted || c.stuck() || len(c.recvs) > 0 || c.pends > 0 || c.lingering > 0 || c.failing.reused > 0 ||
		c.leases.out()+c.rings.claims > 0 || c.outOfStage() || c.releasing() || len(c.leftover) > 0 ||
		c.mayTrim() || c.mayTrimStage() || len(c.checkRings) > 0 ||
		slices.ContainsFunc(c.heaps, func(h *heap) bool { return len(h.free) > 0 }) || // for trimRings
		slices.ContainsFunc(c.order, func(p *peer) bool { return slices.ContainsFunc(p.mapped, (*mappedSlab).unused) }) // for trimMapped
}

// outOfStage reports whether writers or path checks wait while all staging memory is in use, perhaps for ever.
func (c *core) outOfStage() bool {
	return c.stage.Free() == 0 && (c.blocked > 0 && c.stage.Len() > 0 || c.stageLine.len() > 0)
}

// mayTrim reports whether there is memory for Buffers and none of it is in use. A Buffer on its
// way to a dead peer may be in use for as long as the endpoint is open.
func (c *core) mayTrim() bool {
	s := c.lend.Stats()
	return s.Slabs > 0 && s.Blocks == 0
}

// mayTrimStage reports whether there is staging memory and none of it is in use, or wanted, now.
func (c *core) mayTrimStage() bool {
	idle := c.stage.Len() > 0 && c.stage.Free() == c.stage.Len() && c.blocked == 0 && c.met
	return idle && !slices.ContainsFunc(c.order, func(p *peer) bool { return p.check != checkPassed }) // see prepareStage
}

// trimStage gives back the staging memory if none of it was used since trimStage was last called.
func (c *core) trimStage() {
	if c.mayTrimStage() && !c.stageUsed {
		c.discard(c.stage.Trim()...)
		c.wakeStagers()
	}
	c.stageUsed = false
}

// choreTime is the granularity of everything that time makes due: idle leases are
// taken back after one to two times that.
const choreTime = time.Second
