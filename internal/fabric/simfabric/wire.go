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
}

// item is one operation on the wire.
type item struct {
	flow *flow
	op   fabric.Op
	buf  []byte // the operation's own buffer, or a copy
	due  uint64 // step from which on it may arrive
	gone bool   // arrived
	// reported: its completion was pushed when it was posted, or there is none.
	reported bool
	waits    bool  // has met no receive
	halved   bool  // one half of the write is in place
	lost     error // it does not arrive, but ends with this error
}

func (x *item) isSend() bool { return x.op.Kind == fabric.Send || x.op.Kind == fabric.Inject }

// launch puts an operation on the wire.
func (n *Network) launch(src, dst *endpoint, op fabric.Op) *item {
	i := slices.IndexFunc(n.flows, func(f *flow) bool { return f.src == src && f.dst == dst })
	if i < 0 {
		i = len(n.flows)
		n.flows = append(n.flows, &flow{src: src, dst: dst})
	}
	f := n.flows[i]
	x := &item{flow: f, op: op, buf: op.Buf, due: n.later()}
	f.items = append(f.items, x)
	dst.waiter.signal()
	return x
}

// later is a step in the future, the next one if nothing is ever delayed.
func (n *Network) later() uint64 {
	longest := n.cfg.Delay
	if n.chance(n.cfg.Straggle) {
		longest *= 16
	}
	return n.stats.Steps + 1 + uint64(n.rng.IntN(longest+1))
}

// advance moves the network by one step, which caller's Exchange causes.
func (n *Network) advance(caller *endpoint) {
	n.stats.Steps++
	for progress := true; progress; {
		progress = false
		for _, x := range n.ripe(caller) {
			if x.gone {
				continue
			}
			for b := x.blocker(); b != nil; b = x.blocker() {
				x = b
			}
			if n.due(x, caller) && n.deliver(x) {
				progress = true
			}
		}
	}
	n.flows = slices.DeleteFunc(n.flows, func(f *flow) bool { return len(f.items) == 0 })
}

// due reports that x may arrive now.
func (n *Network) due(x *item, caller *endpoint) bool {
	return x.due <= n.stats.Steps || x.flow.dst == caller && caller.p.NoWait && caller.p.SameHost
}

// ripe is all that may arrive now, in random order.
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

// blocker is an earlier item that has to arrive before x, nil if there is none.
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

func (x *item) remove() {
	f := x.flow
	i := slices.Index(f.items, x)
	if i > 0 {
		f.src.net.stats.Reordered++
	}
	f.items = slices.Delete(f.items, i, i+1)
	x.gone = true
}

// deliver lets x arrive, or the first half of it. It reports false if nothing
// has changed.
func (n *Network) deliver(x *item) bool {
	src := x.flow.src
	switch {
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

// deliverWrite reports false if only one half has landed.
func (n *Network) deliverWrite(x *item) bool {
	src, dst := x.flow.src, x.flow.dst
	target := dst.reach(x.op.Key, x.op.Remote, len(x.buf))
	if target == nil {
		n.stats.BadRemote++
		src.finish(x, ErrRemoteAccess) // nobody hears of it if it was reported
		return true
	}
	piece := Event{From: src.name, To: dst.name, Kind: x.op.Kind, Key: x.op.Key, Remote: x.op.Remote, Len: len(x.buf)}
	if half := len(x.buf) / 2; n.cfg.Delay > 0 && half > 0 && !x.halved {
		x.halved, x.due = true, n.later()
		if n.chance(0.5) {
			piece.Len = half
			n.observe(piece)
			n.move(target[:half], x.buf)
		} else {
			piece.Remote, piece.Len = piece.Remote+uint64(half), len(x.buf)-half
			n.observe(piece)
			n.move(target[half:], x.buf[half:])
		}
		return false
	}
	n.observe(piece)
	n.move(target, x.buf)
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

// moving reports that something from or to e is on the wire that arrives if
// only there are enough steps: it does not wait for a receive.
func (n *Network) moving(e *endpoint) bool {
	for _, f := range n.flows {
		if f.src != e && f.dst != e {
			continue
		}
		for _, x := range f.items {
			for b := x.blocker(); b != nil; b = x.blocker() {
				x = b
			}
			if !x.waits {
				return true
			}
		}
	}
	return false
}
