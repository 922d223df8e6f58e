package engine

import (
	"cmp"
	"fmt"
	"runtime"
	"slices"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/pool"
)

// Receives are posted as soon as there is a call into the fabric. Only then are their slots
// promised to peers: see credit.go.

// receives is the state of an endpoint's receive slots. No more are promised than are posted: some providers
// drop a message that finds no receive, others send it again and again.
type receives struct {
	recvs        []fabric.Op // receives to post
	owners       []*peer     // of recvs: the peer that used each, or nil
	recvsRefused bool        // the fabric refused the first of recvs
	urgent       bool        // recvs must not wait for the next call into the fabric
}

// repost has a receive slot posted again. p is the peer that used it, or nil, and is granted
// another one once the receive is really posted. Unless it has few slots in all, a peer that knows of two is told of
// as many new ones even if lazyRecvs are still to be posted.
func (c *core) repost(slot uint32, p *peer) {
	if c.err != nil {
		return
	}
	c.owners = append(c.owners, p)
	c.recvs = append(c.recvs, fabric.Op{
		Kind: fabric.Recv, Tag: slot, Buf: c.rx.Bytes(slot), Desc: c.rx.Desc(slot),
	})
	c.urgent = c.urgent || p == nil || c.slots < 2*lazyRecvs || p.known() <= 2*len(c.recvs)
}

// makeRoom makes sure that the receives of one more peer are posted, and that there are send slots for it. It
// is called with the endpoint locked, by one goroutine at a time, and gives the lock up to map them. Meanwhile
// others may take send slots, or receives.
func (e *Endpoint) makeRoom() error {
	c := e.core
	for {
		if lack := (c.quotasTaken()+1)*c.slots - c.rx.Len(); lack > 0 {
			if err := e.mapSlots(c.rx, lack); err != nil {
				return fmt.Errorf("%w: no receive slots for another peer (%d posted)", err, c.rx.Len())
			}
			for slot, ok := c.rx.Get(); ok; slot, ok = c.rx.Get() {
				c.repost(slot, nil)
			}
			c.postRecvs()
		}
		if lack := c.sendsNeeded(); lack > 0 {
			if err := e.mapSlots(c.tx, lack); err != nil {
				return fmt.Errorf("%w: no send slots for another peer", err)
			}
		}
		if !e.settleRecvs() {
			return cmp.Or(c.err, fmt.Errorf("provider %s: %w", c.attr.Provider, errRecvs))
		}
		if c.sendsNeeded() <= 0 {
			return c.err
		}
	}
}

// sendsNeeded is how many send slots there are too few with one more peer.
func (c *core) sendsNeeded() int {
	return max(c.owedSends+ownSends-c.tx.Free(), c.common+c.deadSends+ownSends*(len(c.order)+1)-c.tx.Len())
}

// mapSlots maps n slots.
func (e *Endpoint) mapSlots(to *pool.Slots, n int) error {
	slab, err := e.mapSlab(func() (*pool.Slab, error) { return to.Map(n) })
	if err != nil {
		return cmp.Or(e.core.err, fmt.Errorf("%w: %w", ErrMemory, err))
	}
	to.Add(slab, n)
	return nil
}

// settleRecvs waits until all receives are posted, since peers must not be promised them
// before. It reports false if the fabric does not take them, or the endpoint has failed.
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

// postRecvs posts the receive slots that are free again.
func (c *core) postRecvs() {
	c.urgent = false
	for len(c.recvs) > 0 {
		n := min(len(c.recvs), len(c.batch))
		posted, _, err := c.fab.Exchange(c.recvs[:n], nil)
		if !c.tookRecvs(posted, n, err) {
			return
		}
	}
}

// tookRecvs notes that the fabric took the first posted of the n receives that it was
// offered, and reports whether it took them all.
func (c *core) tookRecvs(posted, n int, err error) bool {
	for _, p := range c.owners[:posted] {
		if p != nil {
			p.grant()
		}
	}
	if posted > 0 && c.recvsRefused {
		c.stats.Retries++
	}
	c.recvsRefused = posted < n && err == nil
	c.recvs = slices.Delete(c.recvs, 0, posted)
	c.owners = slices.Delete(c.owners, 0, posted)
	if err != nil {
		c.breakdown(fmt.Errorf("posting a receive: %w", err))
	}
	return posted == n && err == nil
}
