package engine

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/pool"
)

// core is the state of one endpoint: its memory, its operations in flight, its
// peers and their streams. It is a state machine: completions, calls and the
// time come in, operations on the fabric and wake-ups go out. It has no
// goroutines, locks or clocks of its own, so a test can replay it exactly. In
// production Endpoint.mu guards all of it.
type core struct {
	fab  fabric.Endpoint
	attr fabric.Attr
	cfg  Config
	rule Rule // by which this side writes
	// deliver: writes must not complete before they have landed. Where the provider does not
	// keep sends behind writes, the promise that no write is in flight could otherwise overtake
	// the writes: the peer would reuse the ring for another conn, and they would land there.
	deliver bool
	at      time.Time        // see now
	clock   func() time.Time // time.Now, except in the model test
	// owner is the Endpoint that conns block on; nil in tests that drive the core alone.
	owner *Endpoint
	eager int // largest frame, in bytes

	rx     *pool.Slots             // receive slots; all are posted, except those that hold early frames
	tx     *pool.Slots             // frames being sent
	stage  *pool.Slots             // sources of RDMA writes
	lend   *pool.Arena             // most Buffers
	slabs  map[*pool.Slab]struct{} // of Buffers too long for lend
	heaps  []*heap                 // reassembly memory, by window size
	leases leases

	stageUsed bool // staging memory was used since trimStage last ran

	// See supply.go.
	staging  supply
	sending  supply
	needs    fifo[*supply] // what is wanted, in the order in which it was asked for
	waste    []*pool.Slab  // slabs to be closed
	leftover []*pool.Slab  // slabs that could not be deregistered: chores tries again
	mapping  int           // calls under way that map or unmap without the lock

	ops     []txOp // operations in flight, by tag
	freeOps []uint32
	flying  int
	stalled int         // peers with operations that cannot be posted for now
	retries fifo[*peer] // these peers, in the order in which their operations are offered again

	receives
	batch      [16]fabric.Op
	peers      map[uint32]*peer
	order      []*peer // the same peers, in an order that a replay reproduces
	lastID     uint32
	touched    []*peer     // to be flushed before this entry into the core ends
	doomed     fifo[*peer] // to be reaped by then
	pends      int         // send slots in which data waits for receive slots of peers
	blocked    int         // streams in the blocked lists of all peers
	awake      int         // writers that were woken from there and are not back yet
	quarantine quarantine
	quotas
	met     bool               // a peer has come: until then, what was prepared for it stays
	mute    bool               // see isMute
	heard   bool               // something has come from some peer since the last heartbeat
	heardAt time.Time          // the heartbeat by which something had last come from some peer
	metAt   time.Time          // when a peer was last heard for the first time; until then, when the endpoint was opened
	lost    map[*peer]struct{} // peers that have failed and still have streams
	freed   bool               // there may be staging memory for peers that wait for it
	// rang is a peer that was sent something and may be asleep: endpoints with doorbells have one peer.
	rang  *peer
	err   error // why the endpoint is unusable, nil if it is not
	down  bool  // the fabric endpoint is shut down
	stays bool  // it could not be shut down: its memory is never freed
	lent  int   // Buffers that the user holds or the fabric reads from
	// copying counts readers that copy from a landing ring, and writers that copy to a
	// staging chunk or a mapped ring, without the lock.
	copying    int
	rings      rings
	checkRings []*pool.Slab // see keptRings
	posted     bool         // an operation was posted since chores last looked, or had not completed by then
	lingering  int          // streams that the user has closed and that are not removed yet
	failing    failing

	stats Stats
}

// txOp is what has to be taken care of when an operation in flight completes.
type txOp struct {
	peer   *peer
	stream *stream     // of an RDMA write
	leaves *stream     // whose data, or end, it carries: see stream.leaving
	spill  int         // one more than the slot in which its data is spilled; 0: it is not
	from   *pool.Slots // where the slot goes back to; nil for a user's Buffer
	slot   uint32      // in there
	buf    *Buffer
	large  framing.Large // announces the write
	pos    uint64        // stream position of its first byte
	// messages is how many count as sent once it has completed: see peer.countPosted.
	messages uint32
}

// outOp is an operation that waits to be posted.
type outOp struct {
	op fabric.Op
	tx txOp
}

func newCore(fab fabric.Endpoint, cfg Config) (*core, error) {
	a := fab.Attr()
	mayRaise := a.SameHost && cfg.Ring == 0
	cfg = cfg.withDefaults()
	if mayRaise && cfg.Budget.Stats().Limit >= 64*DefaultMappedRing {
		cfg.Ring = DefaultMappedRing
	}
	a.TxDepth = max(1, a.TxDepth)
	c := &core{
		fab: fab, attr: a, cfg: cfg, rule: ChooseRule(a), clock: time.Now,
		peers: map[uint32]*peer{}, lost: map[*peer]struct{}{}, slabs: map[*pool.Slab]struct{}{},
		deliver: a.Order&fabric.SendAfterWrite == 0 && a.DeliveryComplete,
	}
	c.rings.most = cfg.Ring
	if err := c.divide(); err != nil {
		return nil, err
	}
	c.eager = int(min(a.MaxMsgSize, eagerFrame))
	if a.SameHost {
		c.eager = min(c.eager, spillSlot, a.InjectSize) // an injected message outlives this process: see hasLeft
	}
	if c.eager < framing.MinEager {
		return nil, fmt.Errorf("provider %s: messages of %d bytes are too small", a.Provider, c.eager)
	}
	c.metAt = c.now()
	c.rx = pool.NewSlots(cfg.Budget, fab, c.eager)
	c.staging.begin, c.sending.begin, c.quarantine.supply.begin = c.orderStage, c.orderSends, c.orderRetire
	c.tx = pool.NewSlots(cfg.Budget, fab, c.eager)
	c.stage = pool.NewSlots(cfg.Budget, fab, stepSize)
	c.lend = pool.NewArena(cfg.Budget, fab, pool.AccessLocal, lendSlab)
	if err := c.tx.Grow(c.sendsNeeded()); err != nil {
		c.free()
		return nil, fmt.Errorf("%w: %w", ErrMemory, err)
	}
	c.updateTakes()
	return c, nil
}

// now is the time. The clock is read once between enter and leave, and only if
// somebody asks: reading it costs as much as a short Write.
func (c *core) now() time.Time {
	if c.at.IsZero() {
		c.at = c.clock()
	}
	return c.at
}

// push posts as much of what p has queued as the fabric takes.
func (c *core) push(p *peer) {
	for p.head < len(p.out) && p.err == nil {
		n := 0
		for n < len(c.batch) && p.head+n < len(p.out) {
			o := &p.out[p.head+n]
			if o.op.Kind != fabric.Inject {
				if !p.mayFly() {
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
			p.doom(fmt.Errorf("%v refused: %w", kindNames[c.batch[min(posted, n-1)].Kind], err))
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

// unstall notes that the fabric takes the peer's operations again.
func (p *peer) unstall() {
	if p.stalled {
		p.stalled = false
		p.c.stalled--
	}
}

// account notes that the fabric took the first posted of the n operations in batch.
func (c *core) account(p *peer, posted, n int) {
	for i := range n {
		o := &p.out[p.head+i]
		if i < posted {
			p.countPosted(&o.op)
		}
		switch {
		case i >= posted && o.op.Kind != fabric.Inject:
			c.dropOp(o.op.Tag)
		case i < posted && o.op.Kind == fabric.Inject:
			o.tx.release()
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
		if p.doorbell.Ring != nil {
			c.rang = p
		}
	}
}

func (c *core) takeOp(t txOp) uint32 {
	t.peer.holdOps(1)
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
	c.ops[tag].peer.holdOps(-1)
	c.ops[tag] = txOp{}
	c.freeOps = append(c.freeOps, tag)
}

// dispatch takes reaped completions in, then sends what they make possible.
func (c *core) dispatch(done []fabric.Completion) {
	for i := range done {
		d := &done[i]
		switch {
		case d.Kind == fabric.Recv && d.Err == nil:
			c.failing.inRow = 0
			c.received(d.Tag, d.Len)
		case d.Kind == fabric.Recv && errors.Is(d.Err, syscall.EMSGSIZE):
			c.stats.FramesDropped++ // anybody can send a message that is too long
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

// flush ends every entry into the core: peers that are doomed are reaped, and receives, frames
// and wake-ups that have become due go out. A few receives may wait for the next call into the fabric,
// which is often the one that sends the answer, or for the next poll, unless peers
// have been promised them already or have few left: see repost.
func (c *core) flush() {
	for {
		for c.doomed.len() > 0 {
			c.reap(c.doomed.pop())
		}
		if len(c.recvs) > lazyRecvs || c.urgent {
			c.postRecvs()
		}
		for i := 0; i < len(c.touched); i++ {
			p := c.touched[i]
			p.touched = false
			c.stats.steps++
			p.flush()
			p.wakeWriters()
		}
		c.touched = c.touched[:0]
		if !c.freed && c.doomed.len() == 0 {
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

// sent handles the completion of a send or a write.
func (c *core) sent(tag uint32, err error) {
	if int(tag) >= len(c.ops) || c.ops[tag].peer == nil {
		c.stats.CQErrors++
		return
	}
	t := c.ops[tag]
	c.dropOp(tag)
	t.peer.countDone(tag, t.messages)
	c.freed, t.peer.moved = true, true
	if t.stream != nil || t.leaves != nil { // other frames do not count: a kernel may take them for a process that is stopped
		t.peer.signs++
		t.peer.completed++
	}
	t.release()
	if t.stream != nil {
		t.stream.writeDone(&t)
	}
	c.touch(t.peer)
	t.peer.returnQuota()
	if err != nil {
		c.stats.CQErrors++
		t.peer.doom(err)
	}
}

func (t *txOp) release() {
	if t.leaves != nil {
		t.leaves.left()
	}
	if t.spill > 0 {
		t.peer.endSpill(t.spill - 1)
	}
	switch {
	case t.from != nil:
		if t.from == t.peer.c.tx {
			t.peer.holdSends(-1, 0)
		} else {
			t.peer.holdStage(-1)
		}
		t.from.Put(t.slot)
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
	c.dropCheckRings()
	c.recvs, c.owners, c.recvsRefused = nil, nil, false // else the queue would be polled for ever to post them
	c.failAll(err)
	c.updateTakes()
}

func (c *core) failAll(err error) {
	for _, p := range c.order {
		p.doom(err)
	}
}

func (c *core) noteAbandoned(err error) {
	if errors.Is(err, fabric.ErrAbandoned) {
		c.stats.Abandoned = 1
	}
}

// retryAtOnce is the number of peers, at most, whose refused operations are offered to the
// fabric again at a time.
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

// stuck reports whether there are operations that cannot be posted for now. Receives that wait for
// the next call do not count: see flush.
func (c *core) stuck() bool { return c.recvsRefused || c.stalled > 0 }

var kindNames = [...]string{"operation", "send", "inject", "receive", "write", "write with data"}
