package simfabric

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
)

// slotKind says which slot a completion frees once it is reaped.
type slotKind uint8

const (
	noSlot slotKind = iota
	txSlot
	rxSlot
)

type entry struct {
	fabric.Completion
	slot slotKind
	buf  []byte // of the operation, which counts as in flight for its owner
}

type endpoint struct {
	net    *Network
	p      Personality
	name   string
	waiter *waiter

	// Under net.mu.
	addrs   []string // by fabric.Addr; "" once removed
	regions map[uint64]*region
	lastKey uint64
	recvs   []fabric.Op
	queue   []entry
	lost    []fabric.Op // to peers that died silently: these never complete
	tx, rx  int         // slots in use, until the completion is reaped
	burst   int         // refusals still to come
	faults  []*Fault
	cut     map[fabric.Addr]bool // a write to that address was lost, and sends are ordered after writes
	death   Death
	closed  bool
	hung    chan struct{} // calls of Exchange wait until it is closed; nil if they do not hang
	inside  int           // calls that have waited for hung
	left    bool          // abandoned
	frozen  bool

	unmapped bool // see Stats.PeerUnmapped
}

func (e *endpoint) Attr() fabric.Attr { return e.p.attr() }

func (e *endpoint) Name() []byte { return []byte(e.name) }

// nameOf returns the name of an endpoint that was opened for src.
func (p *Personality) nameOf(serial int, src netip.Addr) string {
	name := fmt.Sprintf("sim://%s/%d", p.Provider, serial)
	switch {
	case !p.IPNames:
		return name
	case p.Source.IsValid():
		src = p.Source
	}
	return name + ipMark + src.WithZone("").String()
}

// ipMark separates the IP address from the rest of a name.
const ipMark = "@"

func (e *endpoint) NameIP(name []byte) (netip.Addr, error) {
	if !e.p.IPNames {
		return netip.Addr{}, nil
	}
	_, ip, _ := strings.Cut(string(name), ipMark)
	return netip.ParseAddr(ip)
}

func (e *endpoint) Insert(name []byte) (fabric.Addr, error) {
	if !strings.HasPrefix(string(name), "sim://"+e.p.Provider+"/") {
		return 0, fmt.Errorf("%w: name %q is of no %s endpoint", ErrInvalid, name, e.p.Provider)
	}
	time.Sleep(e.p.InsertDelay) // without the lock: nothing else waits for it
	e.net.mu.Lock()
	defer e.net.mu.Unlock()
	if err := e.fault(CallInsert); err != nil {
		return 0, err
	}
	e.addrs = append(e.addrs, string(name)) // whether the endpoint exists shows when it is used
	return fabric.Addr(len(e.addrs) - 1), nil
}

func (e *endpoint) Remove(a fabric.Addr) error {
	e.net.mu.Lock()
	defer e.net.mu.Unlock()
	if a >= fabric.Addr(len(e.addrs)) || e.addrs[a] == "" {
		return fmt.Errorf("%w: address %d is not in use", ErrInvalid, a)
	}
	if err := e.fault(CallRemove); err != nil {
		return err
	}
	e.addrs[a] = ""
	e.unmapped = e.p.PerPeer
	return nil
}

func (e *endpoint) Exchange(ops []fabric.Op, done []fabric.Completion) (posted, reaped int, err error) {
	n := e.net
	n.mu.Lock()
	defer n.mu.Unlock()
	if e.hung != nil && !e.left {
		e.inside++
		n.mu.Unlock()
		<-e.hung
		n.mu.Lock()
	}
	switch {
	case e.left:
		return 0, 0, fabric.ErrAbandoned
	case e.closed || e.death != 0:
		return 0, 0, ErrClosed
	case e.frozen:
		return 0, 0, nil
	}
	if e.unmapped {
		n.stats.PeerUnmapped++
	}
	for ok := true; ok && posted < len(ops); {
		if ok, err = e.post(ops[posted]); ok {
			posted++
		}
	}
	if err == nil && posted == len(ops) && len(done) > 0 {
		err = e.fault(CallPoll)
	}
	n.advance(e)
	return posted, e.reap(done), err
}

// Rescue implements fabric.Rescuer.
func (e *endpoint) Rescue() bool {
	e.net.mu.Lock()
	defer e.net.mu.Unlock()
	if e.inside > 0 && !e.left {
		e.left = true
		e.net.remove(e, DeathSilent)
		close(e.hung)
	}
	return e.left
}

func (e *endpoint) reap(done []fabric.Completion) (reaped int) {
	for reaped < len(done) && len(e.queue) > 0 {
		i := 0
		if e.net.cfg.CompletionReorder {
			i = e.net.rng.IntN(len(e.queue))
		}
		done[reaped] = e.queue[i].Completion
		e.release(e.queue[i].slot)
		e.queue = slices.Delete(e.queue, i, i+1)
		reaped++
	}
	return reaped
}

// post reports whether the operation was posted. If it was not and there is no error, it is to be
// tried again later.
func (e *endpoint) post(op fabric.Op) (ok bool, err error) {
	if err := e.check(op); err != nil {
		return false, err
	}
	var dst *endpoint
	if op.Kind == fabric.Recv {
		ok = e.rx < e.p.RxDepth
	} else {
		// Like real providers, refuse operations to a peer that is not there (yet).
		dst = e.net.endpoints[e.addrs[op.To]]
		ok = e.tx < e.p.TxDepth && dst != nil && dst.death != DeathRefuse
	}
	if !ok || e.refuse() {
		return false, nil
	}
	if err := e.faultOf(CallPost(op.Kind), op, dst); err != nil {
		if errors.Is(err, ErrAgain) {
			err = nil
		}
		return false, err
	}
	if op.Kind == fabric.Recv {
		e.postRecv(op)
	} else {
		e.postTx(op, dst)
	}
	return true, nil
}

// check returns the error of an operation that can never be posted.
func (e *endpoint) check(op fabric.Op) error {
	if op.Kind == fabric.Recv {
		return nil
	}
	bad, most := "", e.p.MaxRMASize
	switch op.Kind {
	case fabric.Send:
		most = e.p.MaxMsgSize
	case fabric.Inject:
		most = min(e.p.MaxMsgSize, uint64(e.p.InjectSize))
	case fabric.Write:
	case fabric.WriteData:
		if e.p.CQDataSize < 4 {
			bad = "no completion data"
		}
	default:
		bad = "unknown kind"
	}
	switch {
	case bad != "":
	case uint64(len(op.Buf)) > most:
		bad = "it is too long"
	case op.Deliver && (op.Kind != fabric.Write && op.Kind != fabric.WriteData || !e.p.DeliveryComplete):
		bad = "no delivery completion"
	case op.To >= fabric.Addr(len(e.addrs)) || e.addrs[op.To] == "":
		bad = "address is not in use"
	default:
		return nil
	}
	return fmt.Errorf("%w: %s (kind %d, %d bytes)", ErrInvalid, bad, op.Kind, len(op.Buf))
}

// refuse reports true now and then, as Config.AgainRate and AgainBurst say.
func (e *endpoint) refuse() bool {
	if e.burst > 0 {
		e.burst--
	} else if e.net.chance(e.net.cfg.AgainRate) {
		e.burst = e.net.rng.IntN(1 + e.net.cfg.AgainBurst)
	} else {
		return false
	}
	e.net.stats.Refused++
	e.waiter.signal() // it is worth trying again, though nothing will complete
	return true
}

func (e *endpoint) postRecv(op fabric.Op) {
	e.rx++
	err := e.faultOf(CallComplete(op.Kind), op, nil)
	if err == nil {
		err = e.broken(op)
	}
	if err != nil {
		e.push(fabric.Completion{Kind: fabric.Recv, Tag: op.Tag, Err: err}, rxSlot, op.Buf)
		return
	}
	e.recvs = append(e.recvs, op)
}

func (e *endpoint) postTx(op fabric.Op, dst *endpoint) {
	e.tx++
	x := &item{op: op}
	lost, err := e.injected(op, dst), e.broken(op)
	if send := op.Kind == fabric.Send || op.Kind == fabric.Inject; send && e.cut[op.To] || err == nil && dst.death == DeathError {
		err = ErrCanceled
	} else if !send && lost != nil && e.p.Order&fabric.SendAfterWrite != 0 {
		e.cut[op.To] = true
	}
	inject := op.Kind == fabric.Inject
	copied := inject && dst.p.Socket > 0 // the provider has a copy, and needs no slot for it once the socket has taken it
	weak := e.p.WeakCompletion && !op.Deliver || copied
	if lost != nil && (weak || e.net.cfg.Delay == 0 || dst.death != 0) {
		err = lost
	}
	if err != nil {
		e.finish(x, err)
		return
	}
	if dst.death == DeathSilent {
		e.lose(x)
		return
	}
	if op.Kind != fabric.Write && e.net.chance(e.net.losses) {
		e.net.stats.Lost++
		e.net.observe(Event{From: e.name, To: dst.name, Kind: op.Kind, Err: ErrLost, Addr: op.To})
		e.finish(x, nil)
		return
	}
	x = e.net.launch(e, dst, op)
	x.lost = lost
	weak = weak && inject == copied && x.flow.take(x)
	if weak || inject {
		x.buf = slices.Clone(op.Buf)
	}
	if weak {
		e.finish(x, nil)
		x.reported = true
	}
}

// injected returns the error that a test wants the operation to complete with.
func (e *endpoint) injected(op fabric.Op, dst *endpoint) error {
	err := e.faultOf(CallComplete(op.Kind), op, dst)
	if err == nil && op.Kind != fabric.Inject && e.net.chance(e.net.cfg.ErrRate) {
		err = ErrInjected
		e.net.stats.Failed++
		e.net.observe(Event{From: e.name, To: dst.name, Kind: op.Kind, Err: err, Addr: op.To})
	}
	return err
}

// broken returns the error of an operation on memory that is not registered, if the personality
// minds. It notes the misuse in any case.
func (e *endpoint) broken(op fabric.Op) error {
	if op.Kind == fabric.Inject {
		return nil
	}
	if !e.registered(op.Buf) {
		e.net.misused("operation of kind %d on %d bytes that are not registered", op.Kind, len(op.Buf))
	}
	if !e.owns(op) {
		e.net.stats.BadLocal++
		return ErrLocalAccess
	}
	return nil
}

// finish completes an operation that was sent, unless that was done already.
func (e *endpoint) finish(x *item, err error) {
	switch {
	case x.reported || e.death != 0:
	case x.op.Kind != fabric.Inject:
		e.push(fabric.Completion{Kind: x.op.Kind, Tag: x.op.Tag, Err: err}, txSlot, x.op.Buf)
	case err != nil:
		// The error of an inject that fails belongs to no operation. The inject keeps its slot
		// until the error is read, as in a send queue of verbs: otherwise there could be more
		// errors than a queue holds.
		e.push(fabric.Completion{Err: err}, txSlot, nil)
	default:
		e.release(txSlot)
		e.waiter.signal()
	}
}

// lose makes an operation to an endpoint that died silently never complete. An inject has nothing
// to wait for: the provider has a copy, and the slot is free again.
func (e *endpoint) lose(x *item) {
	switch {
	case x.op.Kind == fabric.Inject:
		e.finish(x, nil)
	case !x.reported:
		e.lost = append(e.lost, x.op)
	}
}

func (e *endpoint) push(c fabric.Completion, slot slotKind, buf []byte) {
	if e.death != 0 {
		return
	}
	e.queue = append(e.queue, entry{c, slot, buf})
	if depth := e.p.TxDepth + e.p.RxDepth; len(e.queue) > depth && ofOperations(e.queue) > depth {
		e.net.stats.CQOverruns++
	}
	e.waiter.signal()
}

// ofOperations counts completions, except for errors that belong to no operation: see Network.Fail.
func ofOperations(queue []entry) (n int) {
	for _, q := range queue {
		if q.Kind != 0 || q.slot != noSlot {
			n++
		}
	}
	return n
}

func (e *endpoint) release(slot slotKind) {
	switch slot {
	case txSlot:
		e.tx--
	case rxSlot:
		e.rx--
	}
}

func (e *endpoint) Waiter() fabric.Waiter {
	if e.p.NoWait {
		return nil
	}
	return e.waiter
}

// Close fails with ErrBusy while regions are open. What the endpoint has reported as completed
// still arrives; the rest is lost.
func (e *endpoint) Close() error {
	n := e.net
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case e.closed:
		return ErrClosed
	case len(e.regions) > 0:
		return fmt.Errorf("%w: %d of %s", ErrBusy, len(e.regions), e.name)
	}
	if err := e.fault(CallClose); err != nil {
		return err
	}
	if e.p.EndpointMR && e.death == 0 {
		for _, op := range e.inFlight() {
			if !touch(op.Buf) {
				n.misused("memory of operation %d of kind %d unmapped before Close", op.Tag, op.Kind)
			}
		}
	}
	e.closed = true
	e.stop()
	return nil
}

// Shutdown ends all use of the endpoint's memory before Close. Until then calls on other endpoints,
// which move the whole network, may still use it.
func (e *endpoint) Shutdown() error {
	e.net.mu.Lock()
	defer e.net.mu.Unlock()
	if err := e.fault(CallShutdown); err != nil {
		return err
	}
	if !e.p.EndpointMR {
		e.stop()
	}
	return nil
}

func (e *endpoint) stop() {
	if e.death != 0 { // or stopped before
		return
	}
	n := e.net
	for _, f := range n.flows {
		if f.src != e {
			continue
		}
		missing := false // a write was dropped, and with it goes whatever is ordered after it
		f.items = slices.DeleteFunc(f.items, func(x *item) bool {
			if missing && x.isSend() && e.p.Order&fabric.SendAfterWrite != 0 {
				return true
			}
			ends := !x.reported && x.op.Kind != fabric.Inject
			missing = missing || ends && !x.isSend()
			return ends
		})
	}
	n.remove(e, DeathError)
}
