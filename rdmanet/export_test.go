package rdmanet

import (
	"slices"
	"time"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/engine"
	"github.com/seed202c38ff/fabricnet/internal/fabric"
)

// NewTransport returns a Transport over a fabric of the test's choice. It uses most providers
// without their being named.
func NewTransport(f fabric.Fabric) *Transport {
	return &Transport{fabric: f, auto: slices.Concat(automatic, []string{"psm3", "opx", "efa-direct", "tcp", "net", "tcp;ofi_rxm"})}
}

// NewCarefulTransport is NewTransport with the default providers that users get.
func NewCarefulTransport(f fabric.Fabric) *Transport { return &Transport{fabric: f} }

// Say has change change what t offers in its hello.
func (t *Transport) Say(change func(*framing.Hello)) { t.offer = change }

// Hog takes all of t's memory that is not in use, but for the given bytes, until release is called.
func (t *Transport) Hog(but int64) (release func()) {
	m := t.budget.Stats()
	n := m.Limit - m.Used - but
	if err := t.budget.Reserve(n); err != nil {
		panic(err)
	}
	return func() { t.budget.Release(n) }
}

// MaxAsking is how many calls of Authorize a listener has under way at most.
const MaxAsking = maxAsking

// CopySize is the size of the buffers of ReadFrom and WriteTo, in bytes.
const CopySize = copySize

// SpareDelay is how long after a peer has come up a spare endpoint is opened.
const SpareDelay = spareDelay

// Flights returns how many handshakes dials are waiting for.
func (t *Transport) Flights() int {
	t = transportOr(t)
	t.links.mu.Lock()
	defer t.links.mu.Unlock()
	return len(t.links.flights)
}

// Waiters returns how many dials wait for a handshake.
func (t *Transport) Waiters() (n int) {
	t = transportOr(t)
	t.links.mu.Lock()
	defer t.links.mu.Unlock()
	for _, f := range t.links.flights {
		n += f.waiters
	}
	return n
}

// LandingMemory returns how much memory c's Transport has for peers to write to, in bytes.
func LandingMemory(c *Conn) (n int64) {
	for _, p := range c.in.link.t.Stats().Providers {
		n += p.LandingMemory
	}
	return n
}

// Sweep looks for idle peers, which otherwise happens at intervals of Cleaning.
func (t *Transport) Sweep()                  { t.links.sweep(t.idleTimeout()) }
func (t *Transport) Cleaning() time.Duration { return t.links.cleaning() }

// FreeOf returns what the endpoint of a conn has left for live peers.
func FreeOf(c *Conn) engine.Free { return c.in.link.ep.engine.Stats().Free }

// Free is what FreeOf returns.
type Free = engine.Free

// Avoid makes new peers avoid the endpoint of a conn, as happens when a peer falls silent.
func Avoid(c *Conn) { c.in.link.ep.avoided.Store(true) }

// GiveUp has the engine give up the peer of a conn.
func GiveUp(c *Conn) { c.in.link.peer.Lost(engine.ErrStuck) }

// Takes reports whether the endpoint of a conn takes further peers.
func Takes(c *Conn) bool { return c.in.link.ep.takes() }

// LetGo lets an idle peer of l go, however briefly it has been idle. It reports whether there was one.
func LetGo(l *Listener) bool {
	return l.in.t.links.endIdle(func(o *link) bool { return o.met[l.in.number] != nil }, (*link).endIdle)
}

// AgeNames makes the resolved names that t remembers older.
func (t *Transport) AgeNames(by time.Duration) {
	t.links.mu.Lock()
	defer t.links.mu.Unlock()
	for key, n := range t.links.names {
		n.at = n.at.Add(-by)
		t.links.names[key] = n
	}
}

// Bounds on events that wait for loggers: how many at debug level, and for how long Transport.Close waits.
const (
	MaxDebugEvents = maxDebugEvents
	EventsLinger   = eventsLinger
)

// Depart makes t take all threads for ones in another network namespace than the process.
func (t *Transport) Depart() { transportOr(t).netns++ }

// Records returns how many addresses InfoOf knows.
func Records() (n int) {
	records.Range(func(any, any) bool { n++; return true })
	return n
}

// NothingAge is how long it is remembered that there is nothing to offer.
const NothingAge = nothingAge
