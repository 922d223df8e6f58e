package simfabric

import (
	"slices"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
)

// flow is what is on the wire from one endpoint to another, in the order in
// which it was posted.
type flow struct {
	src, dst *endpoint
	items    []*item
	room     int // bytes that dst still takes before it polls again: see Personality.Socket
}

// headerSize is how many bytes of a socket an operation takes besides its data.
const headerSize = 64

// open reports whether dst takes anything now.
func (f *flow) open() bool { return f.dst.p.Socket == 0 || f.room > 0 }

// stuck reports that dst will not take anything, whoever polls.
func (f *flow) stuck() bool { return !f.open() && (!f.src.runs() || !f.dst.runs()) }

// halt lets only a part of what dst would take now still pass.
func (f *flow) halt() {
	if f.open() && f.dst.p.Socket > 0 {
		f.room = f.src.net.rng.IntN(f.room + 1)
	}
}

// take puts an operation into dst's socket at once, if that has room.
func (f *flow) take(x *item) bool {
	x.paid = f.open()
	if x.paid {
		f.room -= headerSize + len(x.op.Buf)
	}
	return x.paid
}

// runs reports that the process is neither dead nor stopped.
func (e *endpoint) runs() bool { return e.death == 0 && !e.frozen }

// item is one operation on the wire.
type item struct {
	flow *flow
	op   fabric.Op
	buf  []byte // the operation's own buffer, or a copy
	due  uint64 // first step in which it may arrive
	gone bool   // arrived
	// reported: its completion was pushed when it was posted, or there is none to push.
	reported bool
	paid     bool     // is in the other side's socket
	waits    bool     // has found no receive
	lost     error    // it does not arrive, but completes with this error
	region   *region  // the region that a write's target was found in
	target   []byte   // nil once it is unmapped
	pieces   [][2]int // of the write that are still to come
}

func (x *item) isSend() bool { return x.op.Kind == fabric.Send || x.op.Kind == fabric.Inject }

// launch puts an operation on the wire.
func (n *Network) launch(src, dst *endpoint, op fabric.Op) *item {
	i := slices.IndexFunc(n.flows, func(f *flow) bool { return f.src == src && f.dst == dst })
	if i < 0 {
		i = len(n.flows)
		n.flows = append(n.flows, &flow{src: src, dst: dst, room: dst.p.Socket})
		if dst.frozen {
			n.flows[i].halt()
		}
	}
	f := n.flows[i]
	x := &item{flow: f, op: op, buf: op.Buf, due: n.later()}
	f.items = append(f.items, x)
	dst.waiter.signal()
	return x
}

// later returns a step in the future, the next one if nothing is ever delayed.
func (n *Network) later() uint64 {
	longest := n.cfg.Delay
	if n.chance(n.cfg.Straggle) {
		longest *= 16
	}
	return n.stats.Steps + 1 + uint64(n.rng.IntN(longest+1))
}

// advance moves the network by one step, because of caller's Exchange.
func (n *Network) advance(caller *endpoint) {
	n.stats.Steps++
	for _, f := range n.flows {
		if f.dst == caller && f.src.runs() {
			f.room = caller.p.Socket
		}
	}
	for progress := true; progress; {
		progress = false
		for _, x := range n.ripe(caller) {
			if x.gone {
				continue
			}
			if x = x.first(); n.due(x, caller) && n.deliver(x) {
				progress = true
			}
		}
	}
	n.flows = slices.DeleteFunc(n.flows, func(f *flow) bool { return len(f.items) == 0 && (f.room == f.dst.p.Socket || !f.src.runs()) })
}

// due reports whether x may arrive now.
func (n *Network) due(x *item, caller *endpoint) bool {
	return x.due <= n.stats.Steps || x.flow.dst == caller && caller.p.NoWait && caller.p.SameHost
}

// ripe returns everything that may arrive now, in random order.
func (n *Network) ripe(caller *endpoint) []*item {
	var items []*item
	for _, f := range n.flows {
		for _, x := range f.items {
			if n.due(x, caller) {
				items = append(items, x)
			}
		}
	}
	n.rng.Shuffle(len(items), func(i, j int) { items[i], items[j] = items[j], items[i] })
	return items
}

// blocker returns an earlier item that has to arrive before x, nil if there is none.
func (x *item) blocker() *item {
	order := x.flow.src.p.Order
	for _, e := range x.flow.items {
		switch {
		case e == x:
			return nil
		case x.isSend() && e.isSend() && order&fabric.SendAfterSend != 0,
			x.isSend() && !e.isSend() && order&fabric.SendAfterWrite != 0,
			!x.isSend() && !e.isSend() && order&fabric.WriteAfterWrite != 0:
			return e
		}
	}
	return nil
}

// first returns the item that has to arrive before x and everything else that x waits for, or x
// itself.
func (x *item) first() *item {
	for b := x.blocker(); b != nil; b = x.blocker() {
		x = b
	}
	return x
}

func (x *item) remove() {
	f := x.flow
	i := slices.Index(f.items, x)
	if i > 0 {
		f.src.net.stats.Reordered++
	}
	f.items = slices.Delete(f.items, i, i+1)
	x.gone = true
}

// deliver lets x arrive, or a piece of it. It reports false if nothing has changed.
func (n *Network) deliver(x *item) bool {
	src := x.flow.src
	switch {
	case !x.paid && !x.flow.open():
		return false
	case !x.reported && x.op.Kind != fabric.Inject && src.death == 0 && !src.owns(x.op):
		n.stats.BadLocal++
		src.finish(x, ErrLocalAccess)
	case x.lost != nil:
		src.finish(x, x.lost)
	case x.isSend():
		if !n.deliverSend(x) {
			return false
		}
	case !n.deliverWrite(x):
		return true
	}
	x.remove()
	return true
}

// deliverSend reports false if no receive is posted.
func (n *Network) deliverSend(x *item) bool {
	dst := x.flow.dst
	if len(dst.recvs) == 0 {
		if !x.waits {
			x.waits = true
			n.stats.SendsWithoutReceive++
		}
		return false
	}
	x.pay(headerSize + len(x.buf))
	r := dst.recvs[0]
	dst.recvs = dst.recvs[1:]
	c := fabric.Completion{Kind: fabric.Recv, Tag: r.Tag}
	switch {
	case !dst.owns(r):
		n.stats.BadLocal++
		c.Err = ErrLocalAccess
	case len(x.buf) > len(r.Buf):
		n.stats.Truncated++
		c.Err = ErrTruncated
	default:
		c.Len = n.move(r.Buf, x.buf)
		n.stats.Sends++
		n.stats.SendBytes += uint64(c.Len)
	}
	dst.push(c, rxSlot, r.Buf)
	x.flow.src.finish(x, nil)
	return true
}

// pay charges dst's socket for bytes of x, unless that was done before.
func (x *item) pay(bytes int) {
	if !x.paid {
		x.flow.room -= bytes
	}
}

// deliverWrite reports false if part of the write is still to come.
func (n *Network) deliverWrite(x *item) bool {
	src, dst := x.flow.src, x.flow.dst
	if begins := x.region == nil; begins || !dst.p.LateWrites {
		if x.region, x.target = dst.reach(x.op.Key, x.op.Remote, len(x.buf)); x.region == nil {
			n.stats.BadRemote++
			src.finish(x, ErrRemoteAccess) // nobody hears of it if x was reported
			return true
		}
		if begins {
			x.pieces = n.cut(len(x.buf))
			x.pay(headerSize)
		}
	}
	from, to := x.pieces[0][0], x.pieces[0][1]
	if dst.p.Socket > 0 && !x.paid {
		to = min(to, from+max(0, x.flow.room))
	}
	x.pay(to - from)
	n.place(x, from, to)
	if x.pieces[0][0] = to; to == x.pieces[0][1] {
		x.pieces = x.pieces[1:]
	}
	if len(x.pieces) > 0 {
		x.due = n.later()
		return false
	}
	n.stats.Writes++
	n.stats.WriteBytes += uint64(len(x.buf))
	if x.op.Kind == fabric.WriteData {
		data := x.op.Data
		if min(src.p.CQDataSize, dst.p.CQDataSize) < 8 {
			data = uint64(uint32(data))
		}
		if !dst.p.Unflagged {
			dst.push(fabric.Completion{Kind: fabric.RemoteWrite, Data: data}, noSlot, nil)
		}
	}
	src.finish(x, nil)
	return true
}

// cut returns the pieces in which a write of size bytes lands, in the order in which they land.
func (n *Network) cut(size int) [][2]int {
	ends := []int{size}
	if n.cfg.Delay > 0 {
		for range 1 + n.rng.IntN(3) {
			ends = append(ends, n.rng.IntN(size+1))
		}
	}
	slices.Sort(ends)
	var pieces [][2]int
	at := 0
	for _, end := range slices.Compact(ends) {
		if end > at || size == 0 {
			pieces = append(pieces, [2]int{at, end})
		}
		at = end
	}
	n.rng.Shuffle(len(pieces), func(i, j int) { pieces[i], pieces[j] = pieces[j], pieces[i] })
	return pieces
}

// place puts a piece of a write where its target was when that was looked up.
func (n *Network) place(x *item, from, to int) {
	if from == to {
		return
	}
	ev := Event{
		From: x.flow.src.name, To: x.flow.dst.name, Kind: x.op.Kind,
		Key: x.op.Key, Remote: x.op.Remote + uint64(from), Len: to - from,
	}
	if x.target != nil {
		ev.Mem = x.target[from:to]
	}
	ev.Place = n.found(x.region, ev.Mem)
	n.observe(ev)
	if ev.Place != Unmapped {
		n.move(ev.Mem, x.buf[from:to])
	}
}

// moving reports whether something from or to e is on the wire that will arrive after enough steps,
// and does not have to wait for a receive.
func (n *Network) moving(e *endpoint) bool {
	for _, f := range n.flows {
		if f.src != e && f.dst != e {
			continue
		}
		for _, x := range f.items {
			x = x.first()
			if !x.waits && (x.paid || f.open() || f.dst == e && !f.stuck()) {
				return true
			}
		}
	}
	return false
}
