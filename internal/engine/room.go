package engine

import (
	"slices"
	"sync/atomic"
	"time"
)

// Room says whether an endpoint takes further peers.
//
//	state        takes         moved there                                       until
//	RoomOpen     yes           at first, and by the end of what follows
//	RoomAvoided  if none does  Avoid: the provider holds leftovers of some peer  never
//	RoomFull     no            newPeer: the receive queue has no place left      a peer goes, or gives back
//	RoomStale    no            count: dead peers hold more than a quarter        that completes
//	RoomMute     no            fail: nothing has come of any peer for long       never
//	RoomClosed   no            it broke down, or was closed                      never
//
// What comes later in the table counts. Who has the endpoints opens another one beside
// those that take none, and closes such a one when its last peer has gone: only that ends
// what dead peers hold.
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

// Room is how it was when a peer came or went last, or was looked for. It takes no lock,
// so that it may be asked for with any held.
func (e *Endpoint) Room() Room { return Room(e.core.room.Load()) }

// Avoid has new peers use another endpoint, if there is one: what the provider still holds of
// a peer, such as a TCP connection that was cut (tcp;ofi_rxm) or the numbers of packets
// (udp;ofi_rxd), would stand in the way of a new dial between the same two endpoints.
func (e *Endpoint) Avoid() {
	e.core.avoided.Store(true)
	e.core.room.CompareAndSwap(uint32(RoomOpen), uint32(RoomAvoided))
}

// Places is for how many peers an endpoint has receives, of which its queue takes so many,
// if a quarter is left, as far as that is whole shares, to those that use more than the
// least. Further peers are taken, but those that are busy get fewer, and in the end no more
// than the least.
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
	attached    int           // peers that are on trial no more
	heardAt     time.Time     // when the last heartbeat came of a peer that has been heard since the one before
	metAt       time.Time     // when a peer was heard first; at first, when the endpoint was opened
	sends       int           // send slots for live peers
	dead        deadHold      // as of the last look
	deadHolders []*peer       // dead ones that held something then
	looksLeft   int           // still to come
}

// deadHold is what dead peers hold: operations that a process took none of before it was
// given up complete never, as long as its socket is there, and their memory belongs to the
// provider until fi_close(3) of the endpoint.
type deadHold struct {
	frames int // send slots
	chunks int // of staging memory
	flying int // operations
	lent   int // bytes of users' Buffers
}

// keptMost is how many bytes of addresses an endpoint keeps for dead peers' late writes
// before it takes no more peers: of what the kernel allows a process, 65,530 mappings
// (vm.max_map_count), these are 512 at most in slabs of landingSlab.
const keptMost = 1 << 30

// tooMuch reports that dead peers hold more than a quarter of the operations that the
// provider's queue takes, which cannot be made up for, or of all memory, of which what
// they have of slots and chunks is made up for.
func (t *deadHold) tooMuch(c *core) bool {
	bytes := t.frames*eagerFrame + t.chunks*stepSize + t.lent
	return t.flying > c.attr.TxDepth/4 || int64(bytes) > c.cfg.Budget.Stats().Limit/4 || c.quarantine.bytes > keptMost
}

// deadLooks is how many times chores looks at what a peer has left behind: when it was
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
	var last *Buffer // whose writes follow one another, more or less
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

// Free is how much of what its peers share an endpoint has for live ones: what dead ones
// hold is made up for.
type Free struct {
	SendSlots, StageChunks, Operations int
}

func (c *core) left() Free {
	return Free{c.tx.Free(), c.stage.Free(), c.queueLeft()}
}

// size is how many bytes of memory a Buffer to send has taken.
func (b *Buffer) size() int {
	if b.block != nil {
		return len(b.block.Bytes)
	}
	return len(b.slab.Bytes())
}
