package rdmanet

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
)

// A goroutine that is locked to a thread may be in another network namespace than the rest of the
// process. What it dials and listens on belongs there, as with package net, so all sockets are
// made on its thread. libfabric, however, makes sockets and looks for devices on whichever thread
// it is called, or on its own, so in such a namespace only providers without sockets are used:
// that is shared memory. It follows that all endpoints are of the process's namespace or of none.

// netns identifies a network namespace: by the number of its inode, which is unique as long as a
// socket there is open. 0 means that it is not known.
type netns uint64

// ownNetns returns the namespace of the threads to which no goroutine is locked.
func ownNetns() (n netns) {
	onAnyThread(func() { n = threadNetns() })
	return n
}

// onAnyThread calls f on a thread to which no goroutine is locked.
func onAnyThread(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	<-done
}

// apart reports whether a namespace is not the process's.
func (t *Transport) apart(n netns) bool { return n != t.netns }

// offersIn is offers for a namespace.
func (t *Transport) offersIn(ctx context.Context, n netns, src netip.Addr, list []string) (chosen []offer, left []string, err error) {
	chosen, left, err = t.offers(ctx, src, list)
	if !t.apart(n) {
		return chosen, left, err
	}
	const why = "it makes sockets on threads that are not in the network namespace of this one"
	var refused []string
	for _, o := range chosen {
		if !o.SameHost {
			refused = append(refused, o.Name+": "+why)
		}
	}
	chosen = slices.DeleteFunc(chosen, func(o offer) bool { return !o.SameHost })
	if err == nil && len(chosen) == 0 {
		err = fmt.Errorf("%w: %s; use shm, or lock no thread to another namespace", fabric.ErrNoProvider, strings.Join(refused, ", "))
	}
	return chosen, append(refused, left...), err
}

// lookupHere resolves a name as r does, but makes all sockets on the calling thread, where
// package net would leave that to other goroutines.
func lookupHere(ctx context.Context, r *net.Resolver, network, host string) (ips []netip.Addr, err error) {
	type question struct {
		ctx              context.Context
		network, address string
		answer           func(net.Conn, error)
	}
	dial := r.Dial
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	questions, found := make(chan question), make(chan struct{})
	own := &net.Resolver{PreferGo: true, StrictErrors: r.StrictErrors}
	own.Dial = func(ctx context.Context, network, address string) (nc net.Conn, err error) {
		answered := make(chan struct{})
		answer := func(c net.Conn, e error) {
			nc, err = c, e
			close(answered)
		}
		select {
		case questions <- question{ctx, network, address, answer}:
			<-answered
			return nc, err
		case <-found:
			return nil, net.ErrClosed
		}
	}
	go func() {
		defer close(found)
		ips, err = own.LookupNetIP(ctx, network, host)
	}()
	for {
		select {
		case q := <-questions:
			q.answer(dial(q.ctx, q.network, q.address))
		case <-found:
			return ips, err
		}
	}
}
