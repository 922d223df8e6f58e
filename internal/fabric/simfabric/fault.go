package simfabric

import (
	"errors"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
)

// Call is what FailCall can make fail.
type Call uint8

// Calls of Fabric, Endpoint, Waiter and Region. See CallPost and CallComplete, too.
const (
	CallOpen Call = iota + 1
	CallInsert
	CallRemove
	CallRegisterLocal
	CallRegisterRemote
	CallCloseRegion // the region stays open
	CallPoll        // Exchange: an error of the queue itself
	CallWait
	CallShutdown
	CallClose
	callPost
	callComplete = callPost + 16
)

// CallPost stands for posting an operation of that kind: Exchange returns the error, and the
// operation is not posted.
func CallPost(k fabric.Kind) Call { return callPost + Call(k) }

// CallComplete stands for the completion of an operation of that kind, which then has no other
// effect.
func CallComplete(k fabric.Kind) Call { return callComplete + Call(k) }

// ErrAgain is an error for CallPost: the operation is refused, as if the queue were full.
var ErrAgain = errors.New("simfabric: try again")

// Fault says which calls fail, and how.
type Fault struct {
	Call Call
	Skip int // this many succeed first
	More int // this many fail after the first that does; negative: all
	Err  error
}

// FailCall makes calls on ep fail from now on. With a nil ep these are calls of Open, and calls on
// endpoints that are opened later, all counted together. A zero Fault takes back all faults of ep
// that are still pending.
func (n *Network) FailCall(ep fabric.Endpoint, f Fault) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if ep == nil {
		n.faults = append(n.faults, &f)
		return
	}
	e := n.endpoints[string(ep.Name())]
	if e.faults = append(e.faults, &f); f.Call == 0 {
		e.faults = nil
	}
}

// Fail makes the next operation of that kind that is posted on ep complete with err, without any
// other effect. With kind 0, ep's queue gets an error at once that belongs to no operation.
func (n *Network) Fail(ep fabric.Endpoint, kind fabric.Kind, err error) {
	if kind != 0 {
		n.FailCall(ep, Fault{Call: CallComplete(kind), Err: err})
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.stats.Failed++
	n.endpoints[string(ep.Name())].push(fabric.Completion{Err: err}, noSlot, nil)
}

// fault returns the error that a call is to fail with, nil if it is to succeed.
func (n *Network) fault(faults []*Fault, c Call) error {
	for _, f := range faults {
		switch {
		case f.Call != c:
		case f.Skip > 0:
			f.Skip--
		default:
			if f.More == 0 {
				f.Call = 0 // spent
			}
			f.More--
			if errors.Is(f.Err, ErrAgain) {
				n.stats.Refused++
			} else {
				n.stats.Failed++
			}
			return f.Err
		}
	}
	return nil
}

// fault is Network.fault for a call on the endpoint. It also reports the fault to Config.Observe.
func (e *endpoint) fault(c Call) error { return e.faultOf(c, fabric.Op{}, nil) }

// faultOf is fault for a call that is about an operation. dst is the operation's target, nil for a
// receive.
func (e *endpoint) faultOf(c Call, op fabric.Op, dst *endpoint) error {
	err := e.net.fault(e.faults, c)
	if err != nil && !errors.Is(err, ErrAgain) {
		ev := Event{From: e.name, Call: c, Kind: op.Kind, Err: err, Addr: op.To, Key: op.Key}
		if dst != nil {
			ev.To = dst.name
		}
		e.net.observe(ev)
	}
	return err
}

// Freeze stops the process that owns ep, as SIGSTOP does: until Thaw, Exchange posts and reaps
// nothing. With a Personality.Socket, operations to and from ep go on until some number of bytes,
// at most that size, has passed. Then they stay in flight until Thaw, or until one of the two
// endpoints ends, whatever else is done with ep's address.
func (n *Network) Freeze(ep fabric.Endpoint) {
	n.mu.Lock()
	defer n.mu.Unlock()
	e := n.endpoints[string(ep.Name())]
	e.frozen = true
	for _, f := range n.flows {
		if f.src == e || f.dst == e {
			f.halt()
		}
	}
}

// Thaw lets a frozen process go on.
func (n *Network) Thaw(ep fabric.Endpoint) {
	n.mu.Lock()
	defer n.mu.Unlock()
	e := n.endpoints[string(ep.Name())]
	e.frozen = false
	e.waiter.signal()
}
