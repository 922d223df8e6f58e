package engine

import (
	"fmt"
	"runtime"
	"slices"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/pool"
)

// Receives are posted as soon as there is a call into the fabric. Only then are their slots
// promised to peers: see credit.go.

// repost has a receive slot posted again. p is the peer that used it, or nil, and is granted
// another one once the receive is really posted.
func (c *core) repost(slot uint32, p *peer) {
	if c.err != nil {
		return
	}
	c.owners = append(c.owners, p)
	c.recvs = append(c.recvs, fabric.Op{
		Kind: fabric.Recv, Tag: slot, Buf: c.rx.Bytes(slot), Desc: c.rx.Desc(slot),
	})
	c.urgent = c.urgent || p == nil || p.known() <= 2*len(c.recvs)
}

// makeRoom makes sure that there are n posted receives that no peer was promised. It is called
// with the endpoint locked, by one goroutine at a time, and gives the lock up to map them.
func (e *Endpoint) makeRoom(n int) error {
	c := e.core
	for c.err == nil && c.ready-c.spoken() < n {
		if len(c.recvs) > 0 {
			if !e.settleRecvs() {
				return fmt.Errorf("provider %s: %w", c.attr.Provider, errRecvs)
			}
			continue
		}
		more := c.attr.RxDepth - c.rx.Len()
		if more <= 0 {
			c.recall(c.taken)
			return fmt.Errorf("provider %s: receive queue of %d is shared by %d peers and %w", c.attr.Provider, c.attr.RxDepth, len(c.peers), ErrFull)
		}
		if !c.attr.PerPeer {
			more = min(more, max(n, slotStep))
		} else {
			more = min(more, n)
		}
		if err := e.mapRecvs(more); err == nil {
			continue
		}
		if err := e.mapRecvs(n); err != nil {
			c.recall(c.taken) // for the peers that come next
			return fmt.Errorf("%w: no receive slots for another peer (%d posted)", ErrMemory, c.rx.Len())
		}
	}
	return c.err
}

func (e *Endpoint) mapRecvs(n int) error {
	c := e.core
	slab, err := e.mapSlab(func() (*pool.Slab, error) { return c.rx.Map(n) })
	if err != nil {
		return err
	}
	if n = min(n, c.attr.RxDepth-c.rx.Len()); n <= 0 { // supply has mapped some meanwhile
		e.giveBack(slab)
		return nil
	}
	c.rx.Add(slab, n)
	c.postFree()
	return nil
}

// postFree posts the receive slots that are new.
func (c *core) postFree() {
	for slot, ok := c.rx.Get(); ok; slot, ok = c.rx.Get() {
		c.repost(slot, nil)
	}
	c.postRecvs()
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
	c.ready += posted
	for _, p := range c.owners[:posted] {
		if p != nil {
			c.grant(p)
		}
	}
	c.feed()
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
