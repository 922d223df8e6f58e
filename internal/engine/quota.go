package engine

import (
	"cmp"
	"fmt"
	"sync/atomic"

	"github.com/seed202c38ff/fabricnet/framing"
)

// What a peer has of an endpoint. An endpoint takes as many peers as there are quotas of its receive queue;
// an endpoint with a provider for one peer has one, of everything. What several peers share is so divided
// that each can go on whatever the others hold, which may be stopped, or dead:
//
//	                  of its own            and in common        a peer that finds none
//	receive slots     slots                 -                    (the other side waits for credit)
//	send slots        ownSends              common               holds some, whose completion wakes it
//	operations        its part of a half    the other half       the same
//	staging chunks    -                     stageMax             waits in stageLine, if it holds none
//
// Of what is in common a peer takes no more than it leaves. So the first peer that stops ends up with half of
// that, the next with half of the rest, and so on. Send slots and staging chunks of dead peers are made up for.
//
// A quota that a peer has left is free once nothing of the peer can use it any more: see returnQuota.

// ownSends is how many send slots a peer has of its own, one of them for control frames alone.
const ownSends = 2

// quotas is what is left of them.
type quotas struct {
	takes     atomic.Bool // the endpoint takes further peers; stored with the lock, read without
	slots     int         // receive slots of a peer
	most      int         // peers that there can be
	dead      int         // peers that are lost, and whose quotas are not free
	maySend   int         // of these, those of which more may come; of the others, only operations are left
	common    int         // send slots in common
	owedSends int         // send slots that peers have not taken of their own
	ownOps    int         // operations that a peer may have in flight of its own
	owedOps   int         // of these, those that are not in flight, with those of peers that are still to come
	deadSends int         // send slots that dead peers hold
	deadStage int         // staging chunks that dead peers hold
	stageLine fifo[*peer]
}

// divide says what each peer gets.
func (c *core) divide() error {
	if c.attr.RxDepth < framing.MinSlots {
		return fmt.Errorf("provider %s: receive queue of %d, at least %d are needed", c.attr.Provider, c.attr.RxDepth, framing.MinSlots)
	}
	if c.attr.PerPeer {
		c.cfg.PeerSlots = cmp.Or(c.cfg.PeerSlots, DefaultPeerSlots)
		c.slots, c.most = max(framing.MinSlots, min(c.cfg.PeerSlots, c.attr.RxDepth)), 1
	} else { // the short queue of a device is for eight peers, at least
		c.cfg.PeerSlots = cmp.Or(c.cfg.PeerSlots, SharedSlots)
		c.slots = max(framing.MinSlots, min(c.cfg.PeerSlots, c.attr.RxDepth/8))
		c.most = max(1, min(c.attr.RxDepth/c.slots, c.attr.TxDepth/2))
	}
	c.common = min(128, max(2*ownSends, c.attr.TxDepth))
	c.ownOps = max(1, c.attr.TxDepth/2/c.most)
	c.owedOps = c.most * c.ownOps // no more can be made for a newcomer, as send slots can
	return nil
}

// quotasTaken is how many peers have one.
func (c *core) quotasTaken() int { return len(c.order) + c.dead }

// fullError is why no further peer comes, nil if there is a quota for it.
func (c *core) fullError() error {
	if c.quotasTaken() < c.most {
		return nil
	}
	return fmt.Errorf("provider %s: receive queue of %d is shared by %d peers and %w", c.attr.Provider, c.attr.RxDepth, len(c.peers), ErrFull)
}

// takeQuota gives a new peer its quota.
func (c *core) takeQuota(p *peer) {
	p.quota = true
	c.owedSends += p.owedSends()
}

// leaveQuota notes that a peer is lost, and has its quota for as long as something of it may still use that:
// its operations in flight, or what its provider may still bring of it.
func (p *peer) leaveQuota() {
	p.c.dead++
	if p.maySend() {
		p.c.maySend++
	}
	if p.c.deadSends += p.frames; p.frames > 0 && len(p.c.order) > 0 { // they miss them
		p.c.want(&p.c.sending)
	}
	if p.c.deadStage += p.staged; p.staged > 0 && !p.c.hasStage() {
		p.c.wakeStagers()
	}
	p.returnQuota()
}

// maySend reports whether more may come of a peer whose address is removed: it is not quiet, and the provider does
// not close the connection with the address.
func (p *peer) maySend() bool { return !p.quiet && !p.c.attr.Forgets }

// left notes that the peer is quiet.
func (p *peer) left() {
	if p.reaped && p.maySend() {
		p.c.maySend--
	}
	p.quiet = true
	p.returnQuota()
	p.c.updateTakes()
}

// returnQuota frees the quota of a lost peer, once its operations have completed and nothing more of it comes.
func (p *peer) returnQuota() {
	c := p.c
	if !p.quota || !p.reaped || p.flying > 0 || !p.removed || p.maySend() {
		return
	}
	p.quota = false
	c.dead--
	c.owedSends -= p.owedSends()
	c.updateTakes()
}

// owedSends is how many send slots the peer has not taken of its own. One is for control frames, however
// much data waits in others.
func (p *peer) owedSends() int { return max(ownSends-p.frames-p.pends, 1-p.frames, 0) }

// owedOps is how many more operations it may have in flight of its own.
func (p *peer) owedOps() int { return max(0, p.c.ownOps-p.flying) }

// holdSends notes that the peer holds so many more send slots, or fewer: of frames that are queued or in
// flight, and of coalesced data.
func (p *peer) holdSends(frames, pends int) {
	c := p.c
	c.owedSends -= p.owedSends()
	p.frames += frames
	p.pends += pends
	if p.reaped {
		c.deadSends += frames
	}
	c.pends += pends
	c.owedSends += p.owedSends()
	if frames+pends < 0 && (p.lacksSends || p.blocked.len() > 0) { // injected frames leave at once, without a completion
		p.lacksSends = false
		c.touch(p)
	}
}

// lackSends notes that the peer was refused a send slot.
func (p *peer) lackSends() {
	p.lacksSends = true
	p.c.stats.Stalls.SendSlots++
}

// holdOps notes that it has so many more operations in flight, or fewer.
func (p *peer) holdOps(n int) {
	c := p.c
	c.owedOps -= p.owedOps()
	p.flying += n
	c.flying += n
	c.owedOps += p.owedOps()
}

// mayWrite reports whether data gets a send slot.
func (p *peer) mayWrite() bool {
	held := p.frames + p.pends
	return held < ownSends-1 || p.c.tx.Free()-p.c.owedSends > max(0, held-ownSends)
}

// mayFrame reports whether a control frame gets a send slot.
func (p *peer) mayFrame() bool { return p.owedSends() > 0 || p.mayWrite() }

// mayFly reports whether the fabric gets another operation.
func (p *peer) mayFly() bool {
	return p.owedOps() > 0 || p.c.queueLeft()-p.c.owedOps > p.flying-p.c.ownOps
}

// queueLeft is how many more operations there may be in flight.
func (c *core) queueLeft() int { return c.attr.TxDepth - c.flying }

// mayStage reports whether an RDMA write gets a staging chunk: a peer that holds some leaves as many to the
// others.
func (p *peer) mayStage() bool {
	free := p.c.stage.Free()
	return free > 0 && (p.staged < free || p.staged == 0 || p.c.attr.PerPeer)
}

// hasStage reports whether there is staging memory but what dead peers hold, perhaps for good.
func (c *core) hasStage() bool { return c.stage.Len() > c.deadStage }

// awaitStage has a peer that holds no staging chunk served when one is free. There may be more of them: when its
// writer tried last, it lacked something else.
func (p *peer) awaitStage() {
	if p.staged == 0 && !p.inStageLine && p.err == nil {
		p.c.wantStage()
		p.inStageLine = true
		p.c.stageLine.push(p)
	}
}

// serve lets peers that wait for staging memory go on, as far as there is some.
func (c *core) serve() {
	for n := c.stageLine.len(); n > 0 && c.stage.Free() > c.awake; n-- {
		p := c.stageLine.pop()
		p.inStageLine = false
		c.stats.steps++
		p.flush()
		p.wakeWriters()
	}
}

// putStage gives back a staging chunk that takeStage took for the peer.
func (p *peer) putStage(slot uint32) {
	p.holdStage(-1)
	p.c.stage.Put(slot)
	p.c.freed = true
	p.c.touch(p) // it may be allowed more now
}

// holdStage notes that the peer holds so many more staging chunks, or fewer. Those of dead peers are made
// up for.
func (p *peer) holdStage(n int) {
	p.staged += n
	if p.reaped {
		p.c.deadStage += n
	}
}

// updateTakes brings up to date whether the endpoint takes further peers.
func (c *core) updateTakes() {
	c.takes.Store(c.err == nil && !c.isStale() && c.quotasTaken() < c.most)
}

// isStale reports whether only its end could make the endpoint of use again: nothing comes any more, or more
// peers are dead than alive, or too much memory is kept for late writes. Dead peers that have left count only
// beyond half of the quotas: their operations are about to complete.
func (c *core) isStale() bool {
	alive := len(c.order)
	return c.mute || c.maySend > alive || c.dead > max(alive, c.most/2) || c.quarantine.bytes > keptMost
}

// keptMost is how many bytes of address space an endpoint keeps for dead peers' late writes
// before it takes no more peers. In slabs of landingSlab these are at most 512 of the 65,530
// mappings that the kernel allows a process (vm.max_map_count).
const keptMost = 1 << 30

// Takes reports whether the endpoint takes further peers. It takes no lock, so it may be called with any
// held.
func (e *Endpoint) Takes() bool { return e.core.takes.Load() }

// Free is how much an endpoint has left of what its peers share, or may still map.
type Free struct {
	SendSlots, StageChunks, Operations int
}

func (c *core) left() Free {
	return Free{c.tx.Free(), c.stage.Free() + max(0, c.mostStage()-c.stage.Len()), c.queueLeft()}
}
