package engine

import (
	"errors"
	"syscall"
)

// Stats is a snapshot of an endpoint's counters.
type Stats struct {
	Provider       string
	Peers          int    // up or coming up
	PeersLost      uint64 // ended, for any reason
	Streams        int    // conns that hold state, closing ones included
	FramesSent     uint64
	FramesReceived uint64
	FramesDropped  uint64 // without the right proof, or malformed
	FramesStray    uint64 // for a conn or a lease that is gone
	WritesStray    uint64 // completion data for a lease that is gone, or twice
	FramesHeld     uint64 // that arrived before what precedes them
	CreditFrames   uint64
	Violations     uint64 // peers that were cut off for breaking the protocol
	// Payload, in bytes: small data travels in frames, the rest by RDMA write.
	SmallSent, SmallReceived uint64
	RDMASent, RDMAReceived   uint64
	RDMAWrites               uint64 // posted
	RDMAWritesReceived       uint64
	LeasesRevoked            uint64
	Landing                  int64  // bytes mapped for landing rings
	Abandoned                uint64 // 1 if the endpoint was, since a call hung in the library
	Posted, Reaped           uint64 // operations and completions
	// Retries are operations, receives included, that the fabric took after it had
	// refused them: its queue was full, or the peer not there yet.
	Retries        uint64
	CQErrors       uint64
	Polls          uint64 // of the completion queue
	PollsEmpty     uint64 // that found nothing
	Parks          uint64 // waits that ended up blocking
	DoorbellsRung  uint64
	DoorbellsHeard uint64
	Stalls         Stalls
	Copies         Copies

	pollsFull uint64 // that found something
}

// Copies counts bytes of payload by whether they were copied, besides the copy
// into the buffer of a Read.
type Copies struct {
	Staged      uint64 // into memory that the fabric sends from
	Unstaged    uint64 // sent from a Buffer
	Reassembled uint64 // since no Read was there when they arrived
	Lent        uint64 // that RecvBuffer returned where they had landed
}

// Stalls counts what senders had to wait for.
type Stalls struct {
	Window    uint64 // the peer's receive window
	Ring      uint64 // the landing ring
	PeerSlots uint64 // the peer's receive slots
	SendSlots uint64 // send slots of this side
	Stage     uint64 // staging memory of this side
	Queue     uint64 // the fabric's transmit queue
	Memory    uint64 // the memory budget
}

// shutdown closes the fabric endpoint and frees what nobody can touch any
// more. The caller owns the completion queue for good.
func (c *core) shutdown() error {
	c.recvs, c.owners, c.down = nil, nil, true
	for p := range c.lost {
		for _, s := range p.streams {
			s.discard()
		}
	}
	end, rest := c.fab.Shutdown, c.close
	if c.attr.EndpointMR { // Shutdown ends nothing
		end, rest = c.close, func() error { return nil }
	}
	if err := end(); err != nil {
		c.stays = true
		return err
	}
	c.keepAddresses()
	for i := range c.ops { // none touches its memory any more
		if b := c.ops[i].buf; b != nil {
			c.ops[i] = txOp{}
			b.done()
		}
	}
	c.tryFree()
	return rest()
}

// close closes the fabric endpoint. What is still held stays mapped, but the
// endpoint is not to wait for it.
func (c *core) close() error { return errors.Join(c.deregister(), c.fab.Close()) }

// registered is memory that the endpoint has registered for itself.
type registered interface {
	Deregister() error
	KeepAddresses()
	Close() error
}

func (c *core) registered() []registered {
	return append([]registered{c.lend, c.rx, c.tx, c.stage}, c.probes.parts()...)
}

// deregister withdraws all registrations.
func (c *core) deregister() (err error) {
	for _, g := range c.graves {
		err = errors.Join(err, g.mem.Deregister())
	}
	for slab := range c.slabs {
		err = errors.Join(err, slab.Deregister())
	}
	for _, r := range c.registered() {
		err = errors.Join(err, r.Deregister())
	}
	return err
}

// keepAddresses sees to it that nothing else comes to lie where operations in
// flight read from. Over shared memory it is the target that does (CMA: see
// process_vm_readv(2)), when it polls next: if it was stopped, it may do so long
// after all is closed here, and would take what it finds for data.
func (c *core) keepAddresses() {
	if !c.attr.PerPeer || c.flying == 0 && c.stats.Abandoned == 0 { // which may have operations that nobody knows of
		return
	}
	for _, r := range c.registered() {
		r.KeepAddresses()
	}
	for i := range c.ops {
		if b := c.ops[i].buf; b != nil && b.slab != nil {
			b.slab.KeepAddresses()
		}
	}
}

// inUse reports that somebody else than the fabric uses registered memory.
func (c *core) inUse() bool { return c.lent > 0 || c.copying > 0 }

// endCopying ends a copy to or from registered memory that was made without
// the lock. It returns false if the endpoint was closed meanwhile.
func (c *core) endCopying() bool {
	c.copying--
	c.tryFree()
	return !c.down
}

// tryFree gives the memory of a closed endpoint back, unless somebody uses it.
func (c *core) tryFree() {
	if !c.down || c.stays || c.inUse() {
		return
	}
	c.free()
}

// discard drops what a stream has not read yet: its memory is going away.
func (s *stream) discard() {
	if !s.eof || !s.segs.empty() {
		s.err, s.eof = syscall.ECONNRESET, false
	}
	s.segs, s.ring = segments{}, nil
	s.rd.signal()
}

// free gives all memory back, once nobody uses it.
func (c *core) free() {
	for _, g := range c.graves {
		_ = g.mem.Close()
	}
	c.graves = nil
	for _, s := range c.heaps {
		_ = s.Close()
	}
	for _, r := range c.registered() {
		_ = r.Close()
	}
}
