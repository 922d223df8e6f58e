package engine

import (
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/pool"
)

// core is one endpoint's state: its memory, its operations in flight, its
// peers and their streams. It is a state machine: completions, calls and the
// time come in, operations on the fabric and wake-ups go out. It has no
// goroutines, locks or clocks of its own, so a test can replay it exactly; in
// production Endpoint.mu guards all of it.
type core struct {
	fab  fabric.Endpoint
	attr fabric.Attr
	cfg  Config
	rule Rule
	// proven: completion data has room for a proof of whose write it is.
	proven bool
	// deliver: writes are to complete when they have landed. What is promised once
	// none is in flight would else overtake them, where no order holds it back: the
	// peer would use the ring for another conn, and they would land there.
	deliver bool
	at      time.Time        // see now
	clock   func() time.Time // time.Now, but in the model test
	// owner is what conns block on; nil in tests that drive the core alone.
	owner *Endpoint
	eager int // largest frame

	rx     *pool.Slots             // receive slots, all posted but for held frames
	tx     *pool.Slots             // frames being sent
	stage  *pool.Slots             // sources of RDMA writes
	lend   *pool.Arena             // Buffers too long for a staging chunk
	slabs  map[*pool.Slab]struct{} // of Buffers too long for those
	heaps  []*heap                 // reassembly memory by window size
	probes probes
	leases *pool.Leases
	// lessees has the peer that was last granted each lease index.
	lessees []*peer

	stageUsed bool // since trimStage

	// See supply.go.
	staging   supply
	sending   supply
	receiving supply
	needs     fifo[*supply] // what is wanted, in the order in which it was asked for
	waste     []*pool.Slab  // to be closed
	leftover  []*pool.Slab  // that could not be deregistered: chores tries again
	mapping   int           // calls that map or unmap without the lock

	ops     []txOp // operations in flight by tag
	freeOps []uint32
	depth   int // how many live peers may have in flight
	flying  int
	stalled int         // peers whose operations the fabric has refused for now
	retries fifo[*peer] // those that were refused, in the order in which they are offered again

	receives
	recvs        []fabric.Op // receives to post
	owners       []*peer     // of recvs: who has used each, or nil
	recvsRefused bool        // the fabric has refused the first of recvs
	urgent       bool        // recvs are not to wait for the next call
	batch        [16]fabric.Op
	peers        map[uint32]*peer
	order        []*peer // the same, in an order that a replay repeats
	lastID       uint32
	touched      []*peer // to be flushed when the dispatch ends
	pongs        []*peer // whose heartbeats are to be answered, once all receives are posted
	lines        lines   // peers that wait for what all share
	pends        int     // send slots in which data waits for peers' receive slots
	blocked      int     // streams in the blocked lists of all peers
	awake        int     // writers that were woken from there, and are not back yet
	quarantine   quarantine
	capacity
	lost  map[*peer]struct{} // peers that have failed and still have streams
	held  bool               // a tail waits for more: a peer with a doorbell has no others beside it
	freed bool               // a budget of the whole endpoint has grown: look at who waits in lines
	// rang lists peers that were sent something and may sleep.
	rang  []*peer
	err   error // the endpoint is unusable
	down  bool  // the fabric endpoint is shut down
	stays bool  // or could not be: its memory is never freed
	lent  int   // Buffers that the user holds or the fabric reads from
	// copying counts readers and writers that copy from a landing ring, or to a
	// staging chunk, without the lock.
	copying int
	// unusedMaps counts the slabs of peers' that are mapped, or could not be, and no lease lies in.
	unusedMaps int
	rings      rings
	// ringDefault: nobody has said how large they are to be.
	ringDefault bool
	posted      bool // an operation was, since chores looked last
	lingering   int  // streams that the user has closed and the peer has not
	failing     failing

	stats Stats
}

// txOp is what a completion of an operation in flight must take care of.
type txOp struct {
	peer   *peer
	stream *stream     // RDMA writes
	from   *pool.Slots // where the slots go back to, nil for a user's Buffer
	slot   uint32      // the first of them
	slots  uint8
	buf    *Buffer
	probe  bool          // a path check's write
	large  framing.Large // byDeliver: to be announced
	pos    uint64
}

// outOp is an operation that waits for its turn.
type outOp struct {
	op fabric.Op
	tx txOp
}

func newCore(fab fabric.Endpoint, cfg Config) (*core, error) {
	ringDefault := cfg.Ring == 0
	cfg = cfg.withDefaults()
	a := fab.Attr()
	a.TxDepth = max(1, a.TxDepth)
	c := &core{
		fab: fab, attr: a, cfg: cfg, rule: ChooseRule(a), clock: time.Now,
		peers: map[uint32]*peer{}, lost: map[*peer]struct{}{}, slabs: map[*pool.Slab]struct{}{},
		leases: new(pool.Leases), depth: a.TxDepth, capacity: capacity{sends: min(128, max(2*ctlSlots, a.TxDepth))},
		proven:  a.CQDataSize >= proofSize,
		deliver: a.Order&fabric.SendAfterWrite == 0 && a.DeliveryComplete,
	}
	c.rings.most, c.ringDefault = cfg.Ring, ringDefault
	c.sharable = min(a.RxDepth, int(cfg.Budget.Stats().Limit/8/eagerFrame))
	if !a.PerPeer {
		c.depth -= c.depth / 4 // the rest is for what dead peers hold: see deadHold
	}
	if a.RxDepth < LeastSlots {
		return nil, fmt.Errorf("provider %s: receive queue of %d, at least %d are needed", a.Provider, a.RxDepth, LeastSlots)
	}
	c.eager = int(min(a.MaxMsgSize, eagerFrame))
	if c.eager < framing.MinEager {
		return nil, fmt.Errorf("provider %s: messages of %d bytes are too small", a.Provider, a.MaxMsgSize)
	}
	c.metAt = c.now()
	c.rx = pool.NewSlots(cfg.Budget, fab, eagerFrame)
	c.tx = pool.NewSlots(cfg.Budget, fab, eagerFrame)
	c.stage = pool.NewSlots(cfg.Budget, fab, stepSize)
	c.staging.slots, c.sending.slots, c.receiving.slots = c.stage, c.tx, c.rx
	c.lend = pool.NewArena(cfg.Budget, fab, pool.AccessLocal, lendSlab)
	if err := c.tx.Grow(c.sends); err != nil {
		c.free()
		return nil, fmt.Errorf("%w: %w", ErrMemory, err)
	}
	return c, nil
}

// now is the time. The clock is read once between enter and leave, and only if
// somebody asks: it costs as much as a short Write.
func (c *core) now() time.Time {
	if c.at.IsZero() {
		c.at = c.clock()
	}
	return c.at
}

// maxPayload is the most payload of a frame that this endpoint can send.
func (c *core) maxPayload() int { return c.eager - framing.HeaderSize }

// push posts what p has queued, as far as the fabric takes it.
func (c *core) push(p *peer) {
	for p.head < len(p.out) && p.err == nil {
		n := 0
		for n < len(c.batch) && p.head+n < len(p.out) {
			o := &p.out[p.head+n]
			if o.op.Kind != fabric.Inject {
				if !p.mayFly() {
					c.lineUp(p, lineQueue, p.flying)
					break
				}
				o.op.Tag = c.takeOp(o.tx)
			}
			c.batch[n] = o.op
			n++
		}
		if n == 0 {
			break
		}
		recvs := 0
		if !c.recvsRefused {
			recvs = copy(c.batch[n:], c.recvs)
		}
		posted, _, err := c.fab.Exchange(c.batch[:n+recvs], nil)
		c.account(p, min(posted, n), n)
		p.refused = posted < n && err == nil
		if posted >= n && recvs > 0 {
			c.tookRecvs(posted-n, recvs, err)
		} else if err != nil {
			c.noteAbandoned(err)
			c.fail(p, fmt.Errorf("%v refused: %w", kindName(c.batch[min(posted, n-1)].Kind), err))
			return
		}
		if posted < n {
			break
		}
	}
	switch {
	case p.head == len(p.out):
		p.out, p.head = p.out[:0], 0
		p.unstall()
	case !p.stalled:
		p.stalled = true
		c.stalled++
		c.stats.Stalls.Queue++
	}
	if p.stalled && !p.retrying {
		p.retrying = true
		c.retries.push(p)
	}
}

// unstall notes that the fabric takes the peer's operations.
func (p *peer) unstall() {
	if p.stalled {
		p.stalled = false
		p.c.stalled--
	}
}

// account notes that the first posted of the n operations in batch were taken.
func (c *core) account(p *peer, posted, n int) {
	for i := range n {
		o := &p.out[p.head+i]
		switch {
		case i >= posted && o.op.Kind != fabric.Inject:
			c.dropOp(o.op.Tag)
		case i < posted && o.op.Kind == fabric.Inject:
			o.tx.release()
			p.gaveBack()
		}
	}
	p.head += posted
	if posted > 0 {
		c.stats.Posted += uint64(posted)
		if p.refused {
			c.stats.Retries++
		}
		p.moved, c.posted = true, true
		p.unstall()
		if p.doorbell.Ring != nil && !p.rung {
			p.rung = true
			c.rang = append(c.rang, p)
		}
	}
}

func (c *core) takeOp(t txOp) uint32 {
	c.flying++
	t.peer.flying++
	if n := len(c.freeOps); n > 0 {
		tag := c.freeOps[n-1]
		c.freeOps = c.freeOps[:n-1]
		c.ops[tag] = t
		return tag
	}
	c.ops = append(c.ops, t)
	return uint32(len(c.ops) - 1)
}

func (c *core) dropOp(tag uint32) {
	c.ops[tag].peer.flying--
	c.ops[tag] = txOp{}
	c.freeOps = append(c.freeOps, tag)
	c.flying--
}

// dispatch takes reaped completions in, then sends what they make possible.
func (c *core) dispatch(done []fabric.Completion) {
	for i := range done {
		d := &done[i]
		if d.Kind == fabric.Recv {
			c.ready--
		}
		switch {
		case d.Kind == fabric.Recv && d.Err == nil:
			c.failing.inRow = 0
			c.received(d.Tag, d.Len)
		case d.Kind == fabric.Recv && errors.Is(d.Err, syscall.EMSGSIZE):
			c.stats.FramesDropped++ // anybody can send what is too long
			c.repost(d.Tag, nil)
		case d.Kind == fabric.Recv:
			c.failedRecv(d.Tag, d.Err)
		case d.Kind == fabric.RemoteWrite:
			c.landed(d.Data)
		case d.Kind == 0:
			c.stats.CQErrors++
			if c.attr.PerPeer { // it can only be about the one peer
				c.failAll(d.Err)
			}
		default:
			c.sent(d.Tag, d.Err)
		}
	}
	c.flush()
}

// flush ends every entry into the core: receives, frames and wake-ups that have
// become due go out. A few receives may wait for the next call into the fabric,
// which is often that of the answer, or the next poll, unless peers were promised
// them already.
func (c *core) flush() {
	for {
		if len(c.recvs) > lazyRecvs || c.urgent || len(c.pongs) > 0 {
			c.postRecvs()
		}
		if len(c.pongs) > 0 {
			c.sendPongs()
		}
		for i := 0; i < len(c.touched); i++ {
			p := c.touched[i]
			p.touched = false
			c.stats.steps++
			p.flush()
			p.wakeWriters()
		}
		c.touched = c.touched[:0]
		if !c.freed {
			return
		}
		c.freed = false
		c.serve()
	}
}

func (c *core) touch(p *peer) {
	if !p.touched {
		p.touched = true
		c.touched = append(c.touched, p)
	}
}

// sent takes the completion of a send or a write.
func (c *core) sent(tag uint32, err error) {
	if int(tag) >= len(c.ops) || c.ops[tag].peer == nil {
		c.stats.CQErrors++
		return
	}
	t := c.ops[tag]
	c.dropOp(tag)
	c.freed, t.peer.moved = true, true
	t.release()
	switch {
	case t.stream != nil:
		if err == nil {
			t.peer.beats.done++
		}
		t.stream.writeDone(&t)
	case t.probe && err == nil:
		t.peer.probeWritten()
	}
	c.touch(t.peer)
	if t.peer.err != nil {
		c.looksLeft = max(c.looksLeft, 1)
	}
	if err != nil {
		c.stats.CQErrors++
		c.fail(t.peer, err)
	}
}

func (t *txOp) release() {
	switch {
	case t.from != nil:
		if t.from == t.peer.c.tx {
			t.peer.frames--
		} else {
			t.peer.staged -= int(t.slots)
		}
		for i := range uint32(t.slots) {
			t.from.Put(t.slot + i)
		}
	case t.buf != nil:
		t.buf.done()
	}
}

// breakdown makes the whole endpoint unusable.
func (c *core) breakdown(err error) {
	c.noteAbandoned(err)
	if c.err != nil {
		return
	}
	c.err = err
	c.recvs, c.owners = nil, nil // or it would be polled for ever, to post them
	c.failAll(err)
	c.updateRoom()
}

func (c *core) failAll(err error) {
	for _, p := range slices.Clone(c.order) {
		c.fail(p, err)
	}
}

func (c *core) noteAbandoned(err error) {
	if errors.Is(err, fabric.ErrAbandoned) {
		c.stats.Abandoned = 1
	}
}

// retryAtOnce bounds for how many peers the fabric is offered again at a time what it has
// refused.
const retryAtOnce = 16

// retry offers the fabric again what it has refused.
func (c *core) retry() {
	c.postRecvs()
	for n := min(c.retries.len(), retryAtOnce); n > 0; n-- {
		p := c.retries.pop()
		p.retrying = false
		c.stats.steps++
		c.push(p)
	}
}

// stuck reports operations that the fabric has refused for now, and receives that
// wait for the next call.
func (c *core) stuck() bool { return len(c.recvs) > 0 || c.stalled > 0 }

func kindName(k fabric.Kind) string {
	names := [...]string{"operation", "send", "inject", "receive", "write", "write with data"}
	if int(k) < len(names) {
		return names[k]
	}
	return "operation"
}
