package engine

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/pool"
)

// slow is an endpoint that, while it is shut, takes for ever to register more than a chunk, or to deregister it.
type slow struct {
	fabric.Endpoint
	shut atomic.Pointer[chan struct{}] // what is closed when it is opened; nil while it is open
	held chan struct{}                 // has a token for each call that is held up
}

func newSlow(e fabric.Endpoint) *slow { return &slow{Endpoint: e, held: make(chan struct{}, 100)} }

func (s *slow) close() {
	shut := make(chan struct{})
	s.shut.Store(&shut)
}

func (s *slow) open() {
	if shut := s.shut.Swap(nil); shut != nil {
		close(*shut)
	}
}

func (s *slow) pass(size int) {
	if shut := s.shut.Load(); shut != nil && size > stepSize {
		s.held <- struct{}{}
		<-*shut
	}
}

func (s *slow) Register(mem []byte, access pool.Access) (pool.Region, error) {
	s.pass(len(mem))
	r, err := s.Endpoint.Register(mem, access)
	return slowRegion{r, s, len(mem)}, err
}

type slowRegion struct {
	pool.Region
	s    *slow
	size int
}

func (r slowRegion) Close() error {
	r.s.pass(r.size)
	return r.Region.Close()
}

// TestNobodyWaitsForMapping: registering memory, or giving it up, may take any time, while other conns go on.
func TestNobodyWaitsForMapping(t *testing.T) {
	const large = 2*lendSlab + 1
	alloc := func(n int) func(*testing.T, *slowLink) {
		return func(t *testing.T, l *slowLink) { assert.NoError(t, tryBuffer(l.a, n)) }
	}
	receive := func(t *testing.T, l *slowLink) { warmUp(t, l.b, l.a) }
	for name, tt := range map[string]struct{ before, held func(*testing.T, *slowLink) }{
		"Buffer of its own":    {held: alloc(large)},
		"Buffer of a slab":     {held: alloc(2 * stepSize)},
		"large data to send":   {held: func(t *testing.T, l *slowLink) { warmUp(t, l.a, l.b) }},
		"large data to be had": {held: receive},
		"other peers": {held: func(t *testing.T, l *slowLink) {
			for range 2 {
				_, err := l.ea.NewPeer(PeerConfig{})
				assert.NoError(t, err)
			}
		}},
		"release of a Buffer": {
			before: func(t *testing.T, l *slowLink) { l.buf = allocBuffer(t, l.a, large) },
			held:   func(_ *testing.T, l *slowLink) { l.buf.Release() },
		},
		"Buffer that was sent": {
			before: func(t *testing.T, l *slowLink) {
				l.buf = allocBuffer(t, l.a, large)
				warmUp(t, l.a, l.b)
			},
			held: func(t *testing.T, l *slowLink) {
				go func() { assert.NoError(t, sendBuffer(l.a, l.buf)) }()
				assert.NoError(t, readN(l.b, large))
			},
		},
		"memory of idle data": {before: receive, held: func(*testing.T, *slowLink) {}}, // time does it
	} {
		for _, sim := range []string{"shm", "tcp", "verbs"} {
			if name == "other peers" && sim != "tcp" || strings.Contains(name, "data") && sim == "shm" {
				continue // shm has one peer, and its large data no registered memory; verbs gives each peer little of a short queue
			}
			t.Run(name+"/"+sim, func(t *testing.T) {
				t.Parallel()
				l := newSlowLink(t, personalities()[sim])
				defer l.close(t)
				if tt.before != nil {
					tt.before(t, l)
				}
				l.end.close()
				defer l.end.open()
				done := begin(func() error { tt.held(t, l); return nil })
				within(t, l.end.held, "nothing is registered or deregistered")
				trips := begin(func() (err error) {
					for i := 0; i < 100 && err == nil; i++ {
						err = roundTrip(l.other, make([]byte, 64))
					}
					return err
				})
				assert.NoError(t, within(t, trips, "another conn waits"))
				l.end.open()
				assert.NoError(t, within(t, done, "the call does not end"))
			})
		}
	}
}

// within returns what comes from c, and fails if that takes long.
func within[T any](t *testing.T, c <-chan T, what string) (got T) {
	t.Helper()
	select {
	case got = <-c:
	case <-time.After(20 * time.Second):
		require.Fail(t, what)
	}
	return got
}

func allocBuffer(t *testing.T, c *Conn, n int) *Buffer {
	t.Helper()
	b, err := c.AllocBuffer(n)
	require.NoError(t, err)
	return b
}

// tryBuffer gets a Buffer, and releases it.
func tryBuffer(c *Conn, n int) error {
	b, err := c.AllocBuffer(n)
	if err == nil {
		b.Release()
	}
	return err
}

// slowLink has a conn for slow calls, and another that echoes.
type slowLink struct {
	*link
	end          *slow
	a, b         *Conn
	other, there *Conn
	buf          *Buffer
}

func newSlowLink(t *testing.T, sim simfabric.Config) *slowLink {
	t.Helper()
	s := &slowLink{}
	var ends []*slow
	s.link, ends = newLinkOn(t, sim, Config{Budget: pool.NewBudget(0)}, newSlow)
	s.end = ends[0]
	s.a, s.b = s.dial(t)
	s.other, s.there = s.dial(t)
	go func() { _ = echo(s.there, 64) }() // until it is reset
	return s
}

func (s *slowLink) close(t *testing.T) {
	t.Helper()
	s.end.open()
	resetConns(t, s.a, s.b, s.other, s.there)
	s.link.close(t)
}

// TestCloseWaitsForMapping: memory that is being registered at Close comes back, and the fabric endpoint stays until then.
func TestCloseWaitsForMapping(t *testing.T) {
	l := newSlowLink(t, personalities()["tcp"])
	l.end.close()
	alloc := begin(func() error { return tryBuffer(l.a, 2*lendSlab) })
	within(t, l.end.held, "nothing is registered")
	go func() { _, _ = l.b.Write(make([]byte, 1<<20)) }() // has this side ask for landing memory, too
	within(t, l.end.held, "no landing memory is registered")
	closed := begin(l.ea.Close)
	select {
	case err := <-closed:
		assert.Fail(t, "Close does not wait", err)
	case <-time.After(20 * time.Millisecond):
	}
	l.end.open()
	assert.NoError(t, within(t, closed, "Close does not end"))
	require.Error(t, <-alloc)
	require.Error(t, tryBuffer(l.a, 2*lendSlab))
	l.close(t)
}

// TestRefusedMemoryIsAskedForAgain: large data goes in frames while the budget has no room, and
// nobody tries all the time. It goes by RDMA write once there is room.
func TestRefusedMemoryIsAskedForAgain(t *testing.T) {
	virtualConn(t, Config{}, func(t *testing.T, l *link, a, b *Conn) {
		budget := l.eb.core.cfg.Budget
		hogged := budget.Stats().Limit - budget.Stats().Used
		require.NoError(t, budget.Reserve(hogged))
		const size = 300_000
		for range 20 {
			carry(t, a, b, size)
		}
		require.Zero(t, b.Seen().LargeIn)
		budget.Release(hogged)
		for start := time.Now(); b.Seen().LargeIn == 0; carry(t, a, b, size) {
			require.Less(t, time.Since(start), 5*choreTime)
			time.Sleep(choreTime / 10)
		}
	})
}

// TestLongCopiesGiveWay: with a large window, much can wait to be read, but no call copies all under the lock.
func TestLongCopiesGiveWay(t *testing.T) {
	_, a, b := newConns(t, personalities()["no large data"], Config{Window: 1 << 20})
	require.NoError(t, writeN(a, 1<<20)) // all that the window takes
	comesTrue(t, func() bool { return b.Seen().SmallIn == 1<<20 })
	n, err := b.Read(make([]byte, 1<<20))
	require.NoError(t, err)
	assert.Equal(t, lockedCopy, n)
	buf, err := b.RecvBuffer()
	require.NoError(t, err)
	assert.Len(t, buf.Bytes(), lockedCopy)
	buf.Release()
	closeConns(t, b, a)
}

// TestBudgetForTheNextBuffer: memory that this side has finished with makes room, even if it is not unmapped yet.
func TestBudgetForTheNextBuffer(t *testing.T) {
	const size = 3 * lendSlab
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, a, b := newConns(t, personalities()["tcp"], Config{Budget: pool.NewBudget(2 * size)})
	for range 50 {
		require.NoError(t, ctx.Err())
		buf := allocBuffer(t, a, size)
		require.NoError(t, tryBuffer(a, lendSlab)) // its slab is kept for the next, until something else needs the room
		buf.Release()
	}
	closeConns(t, a, b)
}

// TestAllocWaitsForNobodyWhoHasGone: a call that waits for the supplier to unmap something is woken
// even if the supplier finds nothing left to do, because another call has done it.
func TestAllocWaitsForNobodyWhoHasGone(t *testing.T) {
	const size = 2 * lendSlab
	l, a, b := newConns(t, personalities()["tcp"], Config{Budget: pool.NewBudget(2*size + 1)})
	e, buf := l.ea, allocBuffer(t, a, size)
	e.mu.Lock()
	require.False(t, e.supplying)
	e.supplying = true // leave has just started supply for what was waste then: see there
	e.mu.Unlock()
	failed := begin(func() error { return tryBuffer(a, size) }) // there is no room, and no waste any more
	time.Sleep(50 * time.Millisecond)
	go e.supply() // which runs only now
	select {
	case err := <-failed:
		assert.ErrorIs(t, err, ErrMemory)
	case <-time.After(5 * time.Second):
		assert.Fail(t, "AllocBuffer waits for ever")
		e.tellMapped()
	}
	buf.Release()
	closeConns(t, a, b)
}

// TestAllocWaitsForRelease: memory that another goroutine is unmapping makes room.
func TestAllocWaitsForRelease(t *testing.T) {
	const size = 3 * lendSlab
	l, ends := newLinkOn(t, personalities()["tcp"], Config{Budget: pool.NewBudget(2 * size)}, newSlow)
	end := ends[0]
	a, b := l.dial(t)
	buf := allocBuffer(t, a, size)
	end.close()
	go buf.Release()
	within(t, end.held, "nothing is deregistered")
	alloc := begin(func() error { return tryBuffer(a, size) })
	select {
	case err := <-alloc:
		assert.NoError(t, err, "it did not wait for what is being unmapped")
		end.open()
	case <-time.After(100 * time.Millisecond):
		end.open()
		assert.NoError(t, <-alloc)
	}
	closeConns(t, a, b)
	l.close(t)
}
