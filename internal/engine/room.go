package engine

import (
	"slices"
	"sync/atomic"
	"time"
)

// Room says whether an endpoint takes further peers.
//
//	state        takes           moved there                                       until
//	RoomOpen     yes             at first, and when one of the others ends
//	RoomAvoided  if no other     Avoid: the provider holds leftovers of some peer  never
//	             endpoint does
//	RoomFull     no              newPeer: the receive queue has no place left      a peer goes, or gives back
//	RoomStale    no              count: dead peers hold too much (see tooMuch)     that completes
//	RoomMute     no              reap: nothing has come from any peer for long     something comes
//	RoomClosed   no              it broke down, or was closed                      never
//
// If several apply, the last one in the table counts. The owner of the endpoints opens another
// one beside those that take no peers, and closes such an endpoint when its last peer has gone:
// only that ends what dead peers hold.
type Room uint8

// The states of Room.
const (
	RoomOpen Room = iota
	RoomAvoided
	RoomFull
	RoomStale
	RoomMute
	RoomClosed
)

// Room is how it was when it was last brought up to date: when a peer came, went or gave back slots,
// when the endpoint broke down, or in chores. It takes no lock, so it may be called with any held.
func (e *Endpoint) Room() Room { return Room(e.core.room.Load()) }

// Avoid makes new peers use another endpoint, if there is one. What the provider still holds of
// a peer, such as a TCP connection that was cut (tcp;ofi_rxm) or packet numbers (udp;ofi_rxd),
// would get in the way of a new dial between the same two endpoints.
func (e *Endpoint) Avoid() {
	e.core.avoided.Store(true)
	e.core.room.CompareAndSwap(uint32(RoomOpen), uint32(RoomAvoided))
}

// Places is for how many peers an endpoint has receives if its queue takes rxDepth of them, and a
// quarter, rounded down to whole shares, is left to peers that use more than the minimum. Further
// peers are taken, too, but busy ones then get fewer receives, and in the end no more than the
// minimum.
func Places(rxDepth int) int { return (rxDepth - rxDepth/4/sharedSlots*sharedSlots) / LeastSlots }

// updateRoom brings Room up to date.
func (c *core) updateRoom() {
	r := RoomOpen
	switch {
	case c.err != nil:
		r = RoomClosed
	case c.mute:
		r = RoomMute
	case c.dead.tooMuch(c):
		r = RoomStale
	case c.attr.RxDepth-c.kept-len(c.failing.late)-c.spoken() < LeastSlots:
		r = RoomFull
	}
	c.room.Store(uint32(r))
	if r == RoomOpen && c.avoided.Load() { // Avoid may be called at the same time
		c.room.CompareAndSwap(uint32(RoomOpen), uint32(RoomAvoided))
	}
}

// capacity is what decides whether the endpoint takes further peers.
type capacity struct {
	room        atomic.Uint32 // a Room; stored with the lock, read without
	avoided     atomic.Bool   // Avoid was called, without the lock
	mute        bool          // see isMute
	attached    int           // peers that are no longer on trial
	heard       uint64        // receives.taken, as of the last heartbeat
	heardAt     time.Time     // the heartbeat by which something had last come from some peer
	metAt       time.Time     // when a peer was last heard for the first time; until then, when the endpoint was opened
	sends       int           // send slots for all live peers in common
	dead        deadHold      // as of the last look
	deadHolders []*peer       // dead peers that held something then
	looksLeft   int           // looks still to come
}

// deadHold is what dead peers hold. Operations that a process had not taken when it was given
// up never complete as long as its socket is there, and their memory belongs to the provider
// until fi_close(3) of the endpoint.
type deadHold struct {
	frames int // send slots
	chunks int // of staging memory
	flying int // operations
	lent   int // bytes of users' Buffers
}

// keptMost is how many bytes of address space an endpoint keeps for dead peers' late writes
// before it takes no more peers. In slabs of landingSlab these are at most 512 of the 65,530
// mappings that the kernel allows a process (vm.max_map_count).
const keptMost = 1 << 30

// tooMuch reports whether dead peers hold more than a quarter of the operations that the
// provider's queue takes, which cannot be made up for, or more than a quarter of all memory,
// out of which the slots and chunks that they hold are made up for, or more than keptMost.
func (t *deadHold) tooMuch(c *core) bool {
	bytes := t.frames*eagerFrame + t.chunks*stepSize + t.lent
	return t.flying > c.attr.TxDepth/4 || int64(bytes) > c.cfg.Budget.Stats().Limit/4 || c.quarantine.bytes > keptMost
}

// deadLooks is how many times chores looks at what a peer has left behind: if it was
// killed, its operations end with an error, but not at once.
const deadLooks = 2

// makeUp finds out what dead peers hold, and makes up for it.
func (c *core) makeUp() {
	c.count()
	c.wantSends()
	if c.stage.Len() > 0 && c.dead.chunks > 0 {
		c.wantStage()
	}
}

// count finds out what dead peers hold.
func (c *core) count() {
	c.dead = deadHold{}
	c.deadHolders = slices.DeleteFunc(c.deadHolders, func(p *peer) bool { return p.flying == 0 && p.staged == 0 })
	for _, p := range c.deadHolders {
		c.dead.frames += p.frames
		c.dead.chunks += p.staged
		c.dead.flying += p.flying
	}
	var last *Buffer // the writes of one Buffer follow one another, more or less
	for i := range c.ops {
		if t := &c.ops[i]; t.buf != nil && t.buf != last && t.peer.err != nil {
			last = t.buf
			if last.chunk {
				c.dead.chunks++
			} else {
				c.dead.lent += last.size()
			}
		}
	}
	c.updateRoom()
}

// Free is how much an endpoint has left, for live peers, of what its peers share. What dead
// peers hold is made up for.
type Free struct {
	SendSlots, StageChunks, Operations int
}

func (c *core) left() Free {
	return Free{c.tx.Free(), c.stage.Free(), c.queueLeft()}
}

// size is how many bytes of memory a Buffer for sending takes.
func (b *Buffer) size() int {
	if b.block != nil {
		return len(b.block.Bytes)
	}
	return len(b.slab.Bytes())
}
