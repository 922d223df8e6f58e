package engine

import (
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/pool"
)

// peer is the state of one process pair on one endpoint.
type peer struct {
	c        *core
	id       uint32 // our number for the peer: its frames carry it
	theirs   uint32 // its number for us
	token    [16]byte
	proofIn  uint64 // that its frames must carry
	proofOut uint64 // that ours carry
	addr     fabric.Addr
	linked   bool // addr is in the address vector
	eager    int  // most payload of a frame that both sides take
	cfg      PeerConfig
	err      error       // why it was lost
	ended    bool        // the owner knows of err
	answers  atomic.Bool // a frame of it has come; read without the lock

	receiveSlots
	outgoing
	held
	doorbell
	inLanding
	pathCheck
	peerStreams
	beats heartbeat
}

// receiveSlots are those that the peer may use of ours, and we of the peer's. All
// counters are cumulative and wrap.
type receiveSlots struct {
	slots      int                // how many it may have in flight
	granted    uint32             // slots granted
	told       uint32             // granted, as of the last frame sent
	seen       uint32             // slots that it used
	credit     framing.SlotCursor // slots granted to us
	used       uint32
	theirSlots int
}

// outgoing is what is to be sent to the peer, and what holds it up.
type outgoing struct {
	out     []outOp // operations in order; out[:head] are posted
	head    int
	stalled bool          // nothing of out can be posted for now
	refused bool          // since the fabric has refused it
	moved   bool          // since chores looked last, something was posted or completed
	waited  time.Duration // for how long nothing has, although something waits
	movedAt time.Time     // when chores last found that something had, or that something came
	heard   uint32        // seen, as of then

	prepaid []ctlFrame // frames whose slot credit is taken: nothing holds them up
	ctl     []ctlFrame
	tail    tail
	blocked []*stream // writers that wait for a budget of the endpoint or the peer
	awake   int       // those that were woken, and are not back yet
	pending []*stream // streams whose coalesced data waits for a slot
	dirty   []*stream // streams whose credits the peer should hear of
	touched bool      // listed in core.touched
}

// held is what the peer holds of what all peers share.
type held struct {
	frames int // send slots of frames that are queued or in flight
	pends  int // send slots of streams' coalesced data
	staged int // staging chunks
	flying int // operations
}

// doorbell is how the peer is woken.
type doorbell struct {
	bell Bell
	rung bool // listed in core.rang
}

// inLanding is what the peer writes to, and how it says that it has.
type inLanding struct {
	landing *pool.Arena
	// keepLanding: it may write until the endpoint is closed: see Peer.Quit.
	keepLanding bool
	supply      supply // of landing memory
	dry         bool   // it had no memory for a lease when grantWaiting looked last
	silent      bool   // its writes come without completion data
	proves      bool   // their completion data shows the proof
}

// pathCheck is the check that comes before conns.
type pathCheck struct {
	probe probe
	pong  waiter // for the end of it
}

// peerStreams are the peer's streams.
type peerStreams struct {
	streams    map[uint32]*stream
	list       []*stream // the same, in an order that a replay repeats
	nextID     uint32
	unanswered int // that have ended, as of when chores looked last: see maxUnanswered
	// conns is how many there are, idle since when there are none, in Unix
	// nanoseconds: both are read without the lock, which a provider that hangs
	// may hold for ever.
	conns atomic.Int32
	idle  atomic.Int64
}

// newPeer reserves a number and receive slots for a peer that is about to come. It is
// called with the endpoint locked, by one goroutine at a time, and gives the lock up to
// map what the peer needs.
func (e *Endpoint) newPeer(token [16]byte, cfg PeerConfig) (*peer, error) {
	c := e.core
	if err := e.mapProbes(); err != nil {
		return nil, err
	}
	defer c.updateRoom()
	want, err := c.share(cfg.Unproven)
	if err == nil {
		want, err = e.mapRecvs(want)
	}
	if err != nil {
		return nil, err
	}
	return c.newPeer(token, cfg, want)
}

// mapRecvs sees to it that there are so many receive slots more than are granted, or as
// many as there is memory for.
func (e *Endpoint) mapRecvs(want int) (int, error) {
	c := e.core
	for c.err == nil && c.rx.Len() < c.granted+want {
		n := c.granted + want - c.rx.Len()
		slab, err := e.mapSlab(func() (*pool.Slab, error) { return c.rx.Map(n) })
		if err == nil {
			c.rx.Add(slab, n)
		} else if want /= 2; want < framing.MinSlots {
			return 0, fmt.Errorf("%w: no receive slots for another peer (%d posted)", ErrMemory, c.rx.Len())
		}
	}
	return want, c.err
}

// promote gives a peer that was Unproven its share. Without room or memory it makes do with
// what it has. It is called as newPeer is.
func (e *Endpoint) promote(p *peer) {
	c := e.core
	p.cfg.Unproven = false
	want, err := c.share(false)
	if want -= p.slots; err != nil || want <= 0 {
		return
	}
	if want, err = e.mapRecvs(want); err != nil {
		return
	}
	c.postFree()
	if !e.settleRecvs() || p.err != nil {
		return
	}
	p.slots += want
	p.granted += uint32(want)
	c.granted += want
	c.setLazy()
	c.updateRoom()
	c.touch(p) // it is told
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

// share is how many receive slots another peer gets: one of what is left, so that the
// first ones do not take all of a shared endpoint's queue.
func (c *core) share(unproven bool) (slots int, err error) {
	left := c.attr.RxDepth - c.granted
	if left < framing.MinSlots {
		return 0, fmt.Errorf("provider %s: receive queue of %d is shared by %d peers and %w", c.attr.Provider, c.attr.RxDepth, len(c.peers), ErrFull)
	}
	if c.attr.PerPeer {
		return min(c.cfg.PeerSlots, left), nil
	}
	if unproven {
		return framing.MinSlots, nil
	}
	return min(c.cfg.PeerSlots, sharedSlots, max(framing.MinSlots, left/8)), nil
}

// newPeer is what is left to do once there are so many receive slots for the peer, and
// memory for its path check.
func (c *core) newPeer(token [16]byte, cfg PeerConfig, want int) (*peer, error) {
	if c.postFree(); c.err != nil {
		return nil, c.err
	}
	c.lastID++
	for c.lastID == 0 || c.peers[c.lastID] != nil {
		c.lastID++
	}
	p := &peer{
		c: c, id: c.lastID, token: token, proofIn: framing.Proof(token), cfg: cfg,
		receiveSlots: receiveSlots{slots: want, granted: uint32(want), told: uint32(want)},
		pathCheck:    pathCheck{pong: newWaiter()},
	}
	p.streams, p.supply.peer = map[uint32]*stream{}, p
	p.idle.Store(c.now().UnixNano())
	c.granted += want
	c.peers[p.id] = p
	c.order = append(c.order, p)
	c.setLazy()
	return p, nil
}

// postFree posts the receive slots that are new, or were those of a peer that is gone.
func (c *core) postFree() {
	for {
		slot, ok := c.rx.Get()
		if !ok {
			break
		}
		c.repost(slot, nil)
	}
	c.setLazy()
	c.postRecvs()
}

// setLazy lets so few receives wait that no peer comes to wait for its slots.
func (c *core) setLazy() {
	c.lazyRecvs = lazyRecvs
	for _, p := range c.order {
		c.lazyRecvs = min(c.lazyRecvs, p.slots/8)
	}
}

// attach completes a peer with what it said of itself.
func (p *peer) attach(a *framing.Attach, addr fabric.Addr) error {
	if a.Slots < framing.MinSlots || a.Slots > framing.MaxSlots || a.Eager < framing.MinEager {
		return fmt.Errorf("%w: %d receive slots of %d bytes", errProtocol, a.Slots, a.Eager)
	}
	p.theirs, p.proofOut, p.addr, p.linked = a.Peer, framing.Proof(a.Token), addr, true
	p.theirSlots, p.credit = int(a.Slots), framing.SlotCursor(a.Slots)
	p.eager = min(int(a.Eager)-framing.HeaderSize, p.c.maxPayload())
	p.landing = pool.NewArena(p.c.cfg.Budget, p.c.fab, pool.AccessRemoteWrite, max(p.c.cfg.Ring, landingSlab))
	return nil
}

// reserve is how many slots of a window only control frames may use.
func reserve(slots int) uint32 { return uint32(max(1, min(4, slots/4))) }

// avail is how many slots of the peer's are ours to use.
func (p *peer) avail() uint32 { return uint32(p.credit) - p.used }

// mayData reports whether n data slots may be used.
func (p *peer) mayData(n uint32) bool {
	return p.linked && p.avail() >= n+reserve(p.theirSlots)
}

// mayCtl reports whether a control frame may be sent. The last slot is kept
// for a frame that brings the peer a new one: two sides that are both down to
// it can then never wait for each other.
func (p *peer) mayCtl() bool {
	a := p.avail()
	return p.linked && (a > 1 || a == 1 && p.granted != p.told)
}

// creditDue reports that the peer should be told of its slots even if nothing
// else is to be sent.
func (p *peer) creditDue() bool {
	n := p.granted - p.told
	return n >= uint32(p.slots)/2 || n > 0 && p.told-p.seen <= reserve(p.slots)
}

// wants reports frames that wait for something.
func (p *peer) wants() bool {
	return p.err == nil && (p.probePostable() || len(p.out) > 0 || len(p.prepaid) > 0 || len(p.ctl) > 0 || len(p.dirty) > 0 || len(p.pending) > 0 || p.creditDue())
}

// fail ends a peer: its streams' pending and later calls fail, and no one
// else's do.
func (c *core) fail(p *peer, err error) {
	if p.err != nil {
		return
	}
	p.err = err
	if c.peers[p.id] == p {
		delete(c.peers, p.id)
		c.order = slices.DeleteFunc(slices.Clone(c.order), func(q *peer) bool { return q == p })
		c.granted -= p.slots
		c.setLazy()
	}
	c.stats.PeersLost++
	c.lost[p] = struct{}{}
	p.buryLanding() // first: what is in use now may be written to
	p.dropTail()
	p.unstall()
	c.blocked -= len(p.blocked)
	p.blocked = nil
	cut := 0
	for _, s := range slices.Clone(p.list) {
		if !s.closed() && s.recv != recvCut && s.recv != recvEOF {
			cut++
		}
		s.fail(syscall.ECONNRESET)
	}
	for i := p.head; i < len(p.out); i++ { // never posted
		p.out[i].tx.release()
	}
	for i, lessee := range c.lessees {
		if lessee == p {
			c.lessees[i] = nil
		}
	}
	c.freed = true
	p.out, p.head, p.prepaid, p.ctl, p.pending, p.dirty = nil, 0, nil, nil, nil, nil
	if !p.checked() {
		p.endCheck(probeFailed)
	}
	if p.linked && !c.attr.PerPeer && !p.keepLanding {
		// Operations in flight end with an error or never: either way their
		// memory belongs to the endpoint and stays valid. Where the provider maps
		// its peer's memory, removing it would pull that from under a poll that is
		// going on: it goes when the endpoint does, which is soon. So does that of a
		// peer that was quit, whose connection rxm may close with its address.
		if err := c.fab.Remove(p.addr); err != nil {
			c.stats.CQErrors++
		}
	}
	c.mute = c.mute || c.isMute(p)
	p.linked = false
	c.deadHolders, c.looksLeft = append(c.deadHolders, p), deadLooks
	if len(c.peers) == 0 {
		c.count() // whether the endpoint is to be kept is asked now
	} else {
		c.updateRoom()
	}
	if p.cfg.Lost != nil {
		p.cfg.Lost(err, cut)
	}
	p.ended = true
	p.checkGone()
}

// checkGone tells the owner when a peer that has ended has no conns left.
func (p *peer) checkGone() {
	if !p.ended || len(p.streams) > 0 {
		return
	}
	delete(p.c.lost, p)
	if p.cfg.Gone != nil {
		p.cfg.Gone()
		p.cfg.Gone = nil
	}
}

// open starts a stream towards a listener of the peer.
func (p *peer) open(listener uint32) (*stream, error) {
	switch {
	case p.err != nil:
		return nil, p.err
	case p.unanswered > maxUnanswered:
		return nil, errUnanswered
	}
	p.nextID++
	for p.nextID == 0 || p.streams[p.nextID] != nil {
		p.nextID++
	}
	s, err := p.newStream(p.nextID)
	if err != nil {
		return nil, err
	}
	s.closing = connOpening
	f := ctlFrame{t: framing.TypeOpen, stream: s.id, n: framing.OpenSize}
	(&framing.Open{Listener: listener}).Encode(f.payload[:])
	p.control(f)
	p.c.flush()
	return s, nil
}

// reset tells the peer that a stream is gone, or never was.
func (p *peer) reset(stream uint32, code framing.ResetCode) {
	f := ctlFrame{t: framing.TypeReset, stream: stream, n: framing.ResetSize}
	code.Encode(f.payload[:])
	p.control(f)
}

// opened takes an Open frame in.
func (p *peer) opened(h *framing.Header, payload []byte) error {
	var o framing.Open
	if err := o.Decode(payload); err != nil {
		return err
	}
	if h.Stream == 0 || p.streams[h.Stream] != nil {
		return errProtocol
	}
	if p.unanswered > maxUnanswered || p.cfg.Unproven && p.probe.state != probePassed {
		p.reset(h.Stream, framing.ResetRefused)
		return nil
	}
	s, err := p.newStream(h.Stream)
	if err != nil {
		p.reset(h.Stream, framing.ResetMemory)
		if p.cfg.NoMemory != nil {
			p.cfg.NoMemory()
		}
		return nil
	}
	s.credits(h.Window, h.Ring)
	code := framing.ResetRefused
	if p.cfg.Accept != nil {
		code = p.cfg.Accept(s.conn, o.Listener)
	}
	if code != 0 {
		s.remove()
		p.reset(h.Stream, code)
		return nil
	}
	p.control(ctlFrame{t: framing.TypeAccept, stream: s.id})
	return nil
}

// resetError is what a Reset frame means to the stream's user.
func resetError(code framing.ResetCode, opening bool) error {
	switch {
	case code == framing.ResetMemory:
		return fmt.Errorf("peer's %w: %w", ErrMemory, syscall.ECONNREFUSED)
	case opening && code != framing.ResetAbort: // which only who was taken hears, be it before the Accept
		return syscall.ECONNREFUSED
	default:
		return syscall.ECONNRESET
	}
}
