package engine

import (
	"bytes"
	"container/list"
	"errors"
	"fmt"
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
	at       int    // in core.order
	theirs   uint32 // its number for us
	token    [16]byte
	proofIn  uint64    // the proof that its frames must carry
	proofOut uint64    // the proof that ours carry
	mark     pool.Mark // what its memory begins with
	addr     fabric.Addr
	linked   bool // addr is in the address vector
	eager    int  // most payload, in bytes, of a frame that both sides take
	cfg      PeerConfig
	doorbell Doorbell
	err      error       // why it is lost: see doom
	lost     error       // what Open returns then: an ECONNRESET that says why
	reaped   bool        // it is in no table or account any more, and its streams have failed
	quota    bool        // it has one: see quota.go
	quiet    bool        // nothing more comes from it that its quota is for
	removed  bool        // its address is no longer in the address vector
	answers  atomic.Bool // a frame has come from it; read without the lock

	// What the peer holds of what all peers share.
	frames int // send slots of frames that are queued or in flight
	pends  int // send slots of streams' coalesced data
	staged int // staging chunks
	flying int // operations

	recvCredit
	sendCredit
	outgoing
	spilling
	inLanding
	pathCheck
	peerStreams
	tally tally

	signs      uint64 // how often the peer's engine has given anything back: frames, and completions of data
	stillSince uint64 // signs when a close last waited for more in vain
	hushSince  uint64 // the same, for a close that could lose only the end
}

// outgoing is what is to be sent to the peer, and what holds it up.
type outgoing struct {
	out       []outOp // operations in order; out[:head] are posted
	head      int
	stalled   bool          // nothing of out can be posted for now
	refused   bool          // because the fabric refused it
	retrying  bool          // listed in core.retries
	moved     bool          // since chores last looked, something was posted or completed
	waited    time.Duration // for how long nothing was, although something waits
	starved   time.Duration // for how long nothing in pending has been sent: see checkPending
	carried   uint32        // what both sides had sent and brought, as of then
	sentSmall uint32        // frames of small data sent
	copied    uint32        // writes made to mapped rings
	movedAt   time.Time     // when chores last found that something was posted or completed, or that something had come
	cameThen  uint32        // tally.came, as of then
	completed uint32        // writes to the peer's rings, and frames with data, that have completed

	prepaid fifo[ctlFrame] // frames whose slot credit is taken already: they only need a send slot
	ctl     fifo[ctlFrame]
	mapped  []*mappedSlab // the peer's memory that is mapped here, or is to be
	// unmapped says why the last attempt to map the peer's memory failed.
	unmapped    error
	blocked     fifo[*stream] // writers that wait for a budget of the endpoint or the peer
	awake       int           // writers that were woken from there and are not back yet
	pending     fifo[*stream] // streams whose coalesced data waits for a slot
	dirty       fifo[*stream] // streams whose credits the peer should be told
	touched     bool          // listed in core.touched
	inStageLine bool          // listed in quotas.stageLine
	lacksSends  bool          // it was refused a send slot
}

// inLanding is what the peer writes to.
type inLanding struct {
	landing *pool.Arena
	// keepLanding: the peer may write until the endpoint is closed; see Peer.Quit.
	keepLanding bool
	supply      supply    // of landing memory
	claims      list.List // streams for which it wants a ring, in the order in which it asked
	ringed      int       // streams that have a ring
	rule        Rule      // how it says that it has written
	landed      uint32    // writes that have landed
}

// peerStreams are the peer's streams.
type peerStreams struct {
	streams    map[uint32]*stream
	list       []*stream // the same streams, in an order that a replay reproduces
	windows    int64     // bytes of the budget that their windows take
	nextID     uint32
	unanswered int // closed here for long, and not answered, when chores last looked: see maxUnanswered
	// conns is how many there are, closed is how many of them the user has closed, and idle is
	// since when there have been none, in Unix nanoseconds. They are read without the lock, which
	// a call that hangs in the provider may hold for ever.
	conns, closed atomic.Int32
	idle          atomic.Int64
}

// newPeer reserves a number and receive slots for a peer that is about to come. It is
// called with the endpoint locked, by one goroutine at a time, and gives the lock up to
// map what the peer needs.
func (e *Endpoint) newPeer(token [16]byte, cfg PeerConfig) (*peer, error) {
	c := e.core
	if err := c.fullError(); err != nil {
		return nil, err
	}
	landing := c.newLanding(token)
	c.met = c.met || !cfg.itself
	if err := e.mapForCheck(landing); err != nil {
		return nil, err
	}
	if err := e.prepare(); err != nil {
		c.discard(landing.Trim(0)...)
		c.tryFree() // the endpoint may have been closed meanwhile
		return nil, err
	}
	return c.newPeer(token, cfg, landing), nil
}

// prepare maps what one more peer needs. It is called under the same conditions as newPeer.
func (e *Endpoint) prepare() error {
	if err := e.prepareStage(); err != nil {
		return err
	}
	err := e.makeRoom()
	e.core.updateTakes()
	return err
}

// newLanding returns the arena for the landing memory of the peer that is told token.
func (c *core) newLanding(token [16]byte) *pool.Arena {
	size := max(c.cfg.Ring, landingSlab)
	if c.rule != byCopy {
		return pool.NewArena(c.cfg.Budget, c.fab, pool.AccessRemoteWrite, size)
	}
	a := pool.NewArena(c.cfg.Budget, nil, pool.AccessRemoteWrite, size) // libfabric has no part in it
	a.Share(framing.MemoryMark(token))
	return a
}

// newPeer does what is left to do once there is a quota for the peer, and memory for its path check.
func (c *core) newPeer(token [16]byte, cfg PeerConfig, landing *pool.Arena) *peer {
	c.lastID++
	for c.lastID == 0 || c.peers[c.lastID] != nil {
		c.lastID++
	}
	p := &peer{
		c: c, id: c.lastID, token: token, proofIn: framing.Proof(token), cfg: cfg,
		recvCredit: recvCredit{granted: uint32(c.slots), advertised: uint32(c.slots)},
		inLanding:  inLanding{landing: landing},
		signs:      1,
		pathCheck:  pathCheck{checked: newJoinWaiter()},
		at:         len(c.order),
	}
	p.streams, p.supply.begin = map[uint32]*stream{}, p.orderLanding
	p.starved = -choreTime
	p.idle.Store(c.now().UnixNano())
	c.peers[p.id] = p
	c.order = append(c.order, p)
	c.takeQuota(p)
	c.updateTakes()
	return p
}

// refuseOurs refuses a peer that gives what is ours as its own. With our token, our own memory would
// pass for the peer's. An endpoint for one peer is nobody else's: over shm a peer whose name is
// another's is not known to libfabric when it sends, and if it has left by then, libfabric reads from
// a null pointer (smr_progress_connreq).
func (p *Peer) refuseOurs(remote *framing.Attach) error {
	what := ""
	switch {
	case remote.Token == p.local.Token:
		what = "token"
	case p.e.attr.PerPeer && bytes.Equal(remote.Name, p.local.Name):
		what = "endpoint's name"
	default:
		return nil
	}
	return fmt.Errorf("provider %s: %w: the peer gives our %s as its own", p.e.attr.Provider, errProtocol, what)
}

// attach completes a peer with what it has said of itself.
func (p *peer) attach(a *framing.Attach, addr fabric.Addr) error {
	if a.Slots < framing.MinSlots || a.Slots > framing.MaxSlots || a.Eager < framing.MinEager {
		return fmt.Errorf("%w: %d receive slots of %d bytes", errProtocol, a.Slots, a.Eager)
	}
	p.theirs, p.proofOut, p.addr, p.linked = a.Peer, framing.Proof(a.Token), addr, true
	p.rule = Rule(a.Rule)
	p.mark = framing.MemoryMark(a.Token)
	p.credit = a.Slots
	p.eager = min(int(a.Eager), p.c.eager) - framing.HeaderSize
	return nil
}

// doom notes that a peer is lost. From now on nothing is posted to it or taken in from it, and
// calls of its streams fail. Everything else is left to the flush that ends this entry into the
// core, which reaps: whoever dooms a peer may be in the middle of working on it.
func (p *peer) doom(err error) {
	if p.err != nil {
		return
	}
	p.err = err
	p.quiet = p.quiet || errors.Is(err, errProtocol) // quotas are nothing to it
	// Only the text: what err wraps, such as a time-out, would mean something else there.
	p.lost = fmt.Errorf("%w: %s", syscall.ECONNRESET, err.Error())
	p.c.doomed.push(p)
}

// reap ends a doomed peer: pending and later calls of its streams fail, and no other peer's do.
func (c *core) reap(p *peer) {
	c.unlist(p)
	if !p.cfg.itself {
		c.stats.PeersLost++
	}
	c.lost[p] = struct{}{}
	p.quarantineLanding() // first: what is in use now may still be written to
	p.loseMapped()
	p.unstall()
	p.spill = Spill{} // its memory goes away with the session
	c.blocked -= p.blocked.len()
	p.blocked = fifo[*stream]{}
	cut := p.failStreams()
	for i := p.head; i < len(p.out); i++ { // never posted
		p.out[i].tx.release()
	}
	c.freed = true
	p.out, p.head, p.prepaid, p.ctl, p.pending, p.dirty = nil, 0, fifo[ctlFrame]{}, fifo[ctlFrame]{}, fifo[*stream]{}, fifo[*stream]{}
	p.checked.signal()
	p.passCheckRing()
	c.mute = c.mute || c.isMute(p)
	c.unlink(p)
	p.reaped = true
	p.leaveQuota()
	c.updateTakes()
	if p.cfg.Lost != nil {
		p.cfg.Lost(p.err, cut)
	}
	p.checkGone()
}

// unlist takes a peer out of the tables and accounts of those that live.
func (c *core) unlist(p *peer) {
	delete(c.peers, p.id)
	last := len(c.order) - 1
	c.order[p.at], c.order[last].at = c.order[last], p.at
	c.order[last] = nil
	c.order = c.order[:last]
}

// failStreams ends the streams of a peer that is lost, and returns how many are cut off from what
// might have come.
func (p *peer) failStreams() (cut int) {
	for _, s := range slices.Backward(p.list) { // those that the user has closed go
		if !s.closed() && !s.checks && s.recv != recvCut && s.recv != recvEOF {
			cut++
		}
		if s.dropClaim(); s.inLease != nil {
			s.leaseEnds()
		}
		s.fail(syscall.ECONNRESET)
	}
	return cut
}

// unlink removes the address of a peer that is lost. Operations in flight end with an error or
// never; either way their memory belongs to the endpoint and stays valid. Where the provider maps
// its peer's memory, removing the address would pull that memory from under a poll that is going
// on. There the address goes when the endpoint does, which is soon. So does the address of a peer
// that was quit, since rxm may close the peer's connection with it.
func (c *core) unlink(p *peer) {
	switch {
	case !p.linked:
		p.quiet, p.removed = true, true
	case c.attr.PerPeer || p.keepLanding:
	default:
		if err := c.fab.Remove(p.addr); err != nil {
			c.stats.CQErrors++
			break
		}
		p.removed = true
	}
	p.linked = false
}

// checkGone tells the owner when a peer that has ended has no conns left.
func (p *peer) checkGone() {
	if !p.reaped || len(p.streams) > 0 {
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
		return nil, p.lost
	case p.unanswered > maxUnanswered:
		return nil, errUnanswered
	}
	p.nextID++
	for p.nextID == 0 || p.streams[p.nextID] != nil {
		p.nextID++
	}
	s, err := p.newStream(p.nextID, listener == checkListener)
	if err != nil {
		return nil, err
	}
	s.conn.dialed = true
	f := ctlFrame{t: framing.TypeOpen, stream: s.id, n: framing.OpenSize}
	(&framing.Open{Listener: listener}).Encode(f.payload[:])
	p.control(f)
	return s, nil
}

// reset tells the peer that a stream is gone, or never was.
func (p *peer) reset(stream uint32, code framing.ResetCode) {
	f := ctlFrame{t: framing.TypeReset, stream: stream, n: framing.ResetSize}
	code.Encode(f.payload[:])
	p.control(f)
}

// opened takes in an Open frame.
func (p *peer) opened(h *framing.Header, payload []byte) error {
	var o framing.Open
	if err := o.Decode(payload); err != nil {
		return err
	}
	if h.Stream == 0 || p.streams[h.Stream] != nil {
		return errProtocol
	}
	checks := o.Listener == checkListener
	if p.unanswered > maxUnanswered || p.cfg.Unproven && p.check != checkPassed && !checks || checks && !p.mayCheck() {
		p.reset(h.Stream, framing.ResetRefused)
		return nil
	}
	s, err := p.newStream(h.Stream, checks)
	if err != nil {
		p.reset(h.Stream, framing.ResetMemory)
		if p.cfg.NoMemory != nil {
			p.cfg.NoMemory()
		}
		return nil
	}
	s.credits(h.Window, h.Ring)
	code := framing.ResetRefused
	switch {
	case checks:
		s.port, code = 1, 0 // which nobody asks for
		p.beginCheck(s)
	case p.cfg.Accept != nil:
		s.port, code = p.cfg.Accept(s.conn, o.Listener)
	}
	if code != 0 {
		s.remove()
		if code != NoAnswer {
			p.reset(h.Stream, code)
		}
		return nil
	}
	f := ctlFrame{t: framing.TypeAccept, stream: s.id, n: framing.AcceptSize}
	(&framing.Accept{Port: s.port}).Encode(f.payload[:])
	p.control(f)
	s.grantForCheck()
	return nil
}

// resetError is what a Reset frame means to the stream's user.
func resetError(code framing.ResetCode, opening bool) error {
	switch {
	case code == framing.ResetMemory:
		return fmt.Errorf("peer's %w: %w", ErrMemory, syscall.ECONNREFUSED)
	case opening && code != framing.ResetAbort: // only a conn that was taken gets that, maybe before the Accept
		return syscall.ECONNREFUSED
	default:
		return syscall.ECONNRESET
	}
}
