package engine

import (
	"context"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/pool"
)

// slow is an endpoint that, while it is shut, takes for ever to register more than a chunk, or to
// deregister it.
type slow struct {
	fabric.Endpoint
	mu   sync.Mutex
	shut chan struct{} // closed when it is opened; nil while it is open
	held chan struct{} // has a token for each call that is held up
}

func newSlow(e fabric.Endpoint) *slow { return &slow{Endpoint: e, held: make(chan struct{}, 100)} }

func (s *slow) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shut = make(chan struct{})
}

func (s *slow) open() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shut != nil {
		close(s.shut)
		s.shut = nil
	}
}

func (s *slow) pass(size int) {
	s.mu.Lock()
	shut := s.shut
	s.mu.Unlock()
	if shut != nil && size > stepSize {
		s.held <- struct{}{}
		<-shut
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

// TestNobodyWaitsForMapping: registering memory, or giving it up, may take any time. Meanwhile
// other conns of the endpoint go on.
func TestNobodyWaitsForMapping(t *testing.T) {
	const large = 2*lendSlab + 1
	alloc := func(n int) func(*testing.T, *slowLink) {
		return func(t *testing.T, l *slowLink) {
			b, err := l.a.AllocBuffer(n)
			if assert.NoError(t, err) {
				b.Release()
			}
		}
	}
	for name, tt := range map[string]struct{ before, held func(*testing.T, *slowLink) }{
		"Buffer of its own":    {held: alloc(large)},
		"Buffer of a slab":     {held: alloc(2 * stepSize)},
		"large data to send":   {held: func(t *testing.T, l *slowLink) { warmUp(t, l.a, l.b) }},
		"large data to be had": {held: func(t *testing.T, l *slowLink) { warmUp(t, l.b, l.a) }},
		"other peers": {held: func(t *testing.T, l *slowLink) {
			for range 2 {
				_, err := l.ea.NewPeer(PeerConfig{})
				assert.NoError(t, err)
			}
		}},
		"release of a Buffer": {
			before: func(t *testing.T, l *slowLink) {
				b, err := l.a.AllocBuffer(large)
				require.NoError(t, err)
				l.buf = b
			},
			held: func(_ *testing.T, l *slowLink) { l.buf.Release() },
		},
		"Buffer that was sent": {
			before: func(t *testing.T, l *slowLink) {
				b, err := l.a.AllocBuffer(large)
				require.NoError(t, err)
				l.buf = b
				warmUp(t, l.a, l.b)
			},
			held: func(t *testing.T, l *slowLink) {
				go func() { assert.NoError(t, sendBuffer(l.a, l.buf)) }()
				_, err := io.ReadFull(l.b, make([]byte, large))
				assert.NoError(t, err)
			},
		},
		"memory of idle data": {
			before: func(t *testing.T, l *slowLink) { warmUp(t, l.b, l.a) },
			held:   func(*testing.T, *slowLink) {}, // time does it
		},
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
				done := make(chan struct{})
				go func() { defer close(done); tt.held(t, l) }()
				within(t, l.end.held, "nothing is registered or deregistered")
				trips := make(chan struct{})
				go func() {
					defer close(trips)
					for range 100 {
						assert.NoError(t, roundTrip(l.other, make([]byte, 64)))
					}
				}()
				within(t, trips, "another conn waits")
				l.end.open()
				within(t, done, "the call does not end")
			})
		}
	}
}

func within(t *testing.T, c <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(20 * time.Second):
		require.Fail(t, what)
	}
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
	for _, c := range []*Conn{s.a, s.b, s.other, s.there} {
		assert.NoError(t, c.SetLinger(0))
		assert.NoError(t, c.Close())
	}
	s.link.close(t)
}

// TestCloseWaitsForMapping: memory that is being registered when an endpoint is closed is given
// back, and the fabric endpoint is not closed under it.
func TestCloseWaitsForMapping(t *testing.T) {
	l := newSlowLink(t, personalities()["tcp"])
	l.end.close()
	alloc := make(chan error, 1)
	go func() {
		_, err := l.a.AllocBuffer(2 * lendSlab)
		alloc <- err
	}()
	within(t, l.end.held, "nothing is registered")
	go func() { _, _ = l.b.Write(make([]byte, 1<<20)) }() // has this side ask for landing memory, too
	within(t, l.end.held, "no landing memory is registered")
	closed := make(chan struct{})
	go func() { defer close(closed); assert.NoError(t, l.ea.Close()) }()
	select {
	case <-closed:
		assert.Fail(t, "Close does not wait")
	case <-time.After(20 * time.Millisecond):
	}
	l.end.open()
	within(t, closed, "Close does not end")
	require.Error(t, <-alloc)
	_, err := l.a.AllocBuffer(2 * lendSlab)
	require.Error(t, err)
	l.close(t)
}

// TestRefusedMemoryIsAskedForAgain: large data goes in frames while the budget has no room, and
// nobody tries all the time. It goes by RDMA write once there is room.
func TestRefusedMemoryIsAskedForAgain(t *testing.T) {
	virtual(t, Config{}, func(t *testing.T, l *link) {
		a, b := l.dial(t)
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
		closeConns(t, a, b)
	})
}

// TestLongCopiesGiveWay: with a large window, much data can wait to be read, but no call copies all
// of it under the lock.
func TestLongCopiesGiveWay(t *testing.T) {
	_, a, b := newConns(t, personalities()["no large data"], Config{Window: 1 << 20})
	_, err := a.Write(make([]byte, 1<<20)) // all that the window takes
	require.NoError(t, err)
	require.Eventually(t, func() bool { return b.Seen().SmallIn == 1<<20 }, 10*time.Second, time.Millisecond)
	n, err := b.Read(make([]byte, 1<<20))
	require.NoError(t, err)
	assert.Equal(t, lockedCopy, n)
	buf, err := b.RecvBuffer()
	require.NoError(t, err)
	assert.Len(t, buf.Bytes(), lockedCopy)
	buf.Release()
	closeConns(t, b, a)
}

// TestBudgetForTheNextBuffer: memory that this side has released or finished with makes room, even
// if it is not unmapped yet.
func TestBudgetForTheNextBuffer(t *testing.T) {
	const size = 3 * lendSlab
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	l := unwatched(t, personalities()["tcp"], Config{Budget: pool.NewBudget(2 * size)})
	a, b := l.dial(t)
	for range 50 {
		require.NoError(t, ctx.Err())
		buf, err := a.AllocBuffer(size)
		require.NoError(t, err)
		small, err := a.AllocBuffer(lendSlab)
		require.NoError(t, err)
		small.Release() // its slab is kept for the next, until something else needs the room
		buf.Release()
	}
	closeConns(t, a, b)
	l.close(t)
}

// TestAllocWaitsForNobodyWhoHasGone: a call that waits for the supplier to unmap something is woken
// even if the supplier finds nothing left to do, because another call has done it.
func TestAllocWaitsForNobodyWhoHasGone(t *testing.T) {
	const size = 2 * lendSlab
	l := unwatched(t, personalities()["tcp"], Config{Budget: pool.NewBudget(2*size + 1)})
	a, b := l.dial(t)
	e := l.ea
	buf, err := a.AllocBuffer(size)
	require.NoError(t, err)
	e.mu.Lock()
	require.False(t, e.supplying)
	e.supplying = true // leave has just started supply for what was waste then: see there
	e.mu.Unlock()
	failed := make(chan error, 1)
	go func() {
		_, err := a.AllocBuffer(size) // there is no room, and no waste any more
		failed <- err
	}()
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
	l.close(t)
}

// TestAllocWaitsForRelease: memory that another goroutine is unmapping makes room.
func TestAllocWaitsForRelease(t *testing.T) {
	const size = 3 * lendSlab
	l, ends := newLinkOn(t, personalities()["tcp"], Config{Budget: pool.NewBudget(2 * size)}, newSlow)
	end := ends[0]
	a, b := l.dial(t)
	buf, err := a.AllocBuffer(size)
	require.NoError(t, err)
	end.close()
	go buf.Release()
	within(t, end.held, "nothing is deregistered")
	alloc := make(chan error, 1)
	go func() {
		buf, err := a.AllocBuffer(size)
		if err == nil {
			buf.Release()
		}
		alloc <- err
	}()
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
