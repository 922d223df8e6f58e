package engine

import (
	"bytes"
	"errors"
	"io"
	"net/netip"
	"os"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/pool"
)

// mappedLink runs test with a link whose sides map each other's rings, on virtual time.
func mappedLink(t *testing.T, cfg Config, test func(t *testing.T, l *link)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		cfg.Spin = -1 // polling would keep the clock from moving
		l := newLink(t, simfabric.Config{Seed: 5, Personality: simfabric.Shm()}, cfg)
		test(t, l)
		l.close(t)
	})
}

// mappedConn is mappedLink with a conn that has a mapped ring, and is given up in the end.
func mappedConn(t *testing.T, cfg Config, test func(t *testing.T, l *link, a, b *Conn)) {
	t.Helper()
	mappedLink(t, cfg, func(t *testing.T, l *link) {
		a, b := l.dial(t)
		warmUp(t, a, b)
		test(t, l, a, b)
		giveUp(a, b)
	})
}

// locked calls f with the endpoint's lock held.
func locked(e *Endpoint, f func()) {
	e.enter()
	defer e.leave()
	f()
}

// TestMapped: large data is copied to where the peer reads it, whichever call sends it, and nothing
// is staged or written by RDMA. Only the last bytes of a call go in a frame, if the ring is full.
func TestMapped(t *testing.T) {
	mappedConn(t, Config{}, func(t *testing.T, l *link, a, b *Conn) {
		data := drawn(0, 3<<20)
		before, calls := l.ea.Stats(), 1
		go func() {
			_, err := a.Write(data[:1<<20])
			assert.NoError(t, err)
			for rest := data[1<<20:]; len(rest) > 0; {
				buf, err := a.AllocBuffer(min(100_000, len(rest)))
				assert.NoError(t, err)
				rest = rest[copy(buf.Bytes(), rest):]
				assert.NoError(t, sendBuffer(a, buf))
				calls++
			}
			assert.NoError(t, a.CloseWrite())
		}()
		got, err := io.ReadAll(io.LimitReader(b, 2<<20))
		require.NoError(t, err)
		for {
			buf, err := b.RecvBuffer()
			if err == io.EOF {
				break
			}
			require.NoError(t, err)
			got = append(got, buf.Bytes()...)
			buf.Release()
		}
		require.True(t, bytes.Equal(data, got))
		after := l.ea.Stats()
		small := after.SmallSent - before.SmallSent
		assert.EqualValues(t, len(data), after.Copies.Mapped-before.Copies.Mapped+small)
		assert.LessOrEqual(t, small, uint64(calls*a.stream.p.eager))
		assert.Equal(t, after.RDMABytesSent-before.RDMABytesSent, after.Copies.Mapped-before.Copies.Mapped)
		assert.Equal(t, after.SmallSent, after.Copies.Staged)
		assert.Zero(t, after.Copies.Unstaged)
		assert.NotZero(t, l.ea.core.cfg.Budget.Stats().Foreign)
		resetConns(t, a, b)
	})
}

// TestUnmappable: a side that cannot map the other's memory fails the path check, and the dialing side learns why.
func TestUnmappable(t *testing.T) {
	for side, name := range []string{"the dialing side", "the listening side"} {
		for what, tt := range map[string]struct {
			maps mapsMemory
			want error
			text [2]string // for the side that maps, and for the other one, whose Dial it is
		}{
			"no access":    {outOfReach, ErrUnmapped, [2]string{": no", "the peer cannot map memory of this process"}},
			"another file": {mapsOther(checkCopied), ErrContents, [2]string{"at the peer", "a write from the peer"}},
		} {
			onVirtualTime(t, name+", "+what, func(t *testing.T) {
				asked := -1
				maps := func(b *pool.Budget) func(pool.SharedName) (*pool.Slab, error) {
					if asked++; asked == side {
						return tt.maps(b)
					}
					return opens(b)
				}
				sim := simfabric.Config{Seed: 5, Personality: simfabric.Shm()}
				l, err := newLinkMapping(sim, Config{Spin: -1}, func(e fabric.Endpoint) fabric.Endpoint { return e }, maps)
				assert.ErrorIs(t, err, tt.want)
				assert.ErrorContains(t, err, tt.text[side])
				if errors.Is(tt.want, ErrUnmapped) { // else what came to the listening side may have been right
					assert.False(t, l.b.Checked())
				}
				l.end(t)
			})
		}
	}
}

func outOfReach(*pool.Budget) func(pool.SharedName) (*pool.Slab, error) {
	return func(pool.SharedName) (*pool.Slab, error) { return nil, errors.New("no") }
}

// TestNotMapped: large data goes in frames while the ring cannot be mapped.
func TestNotMapped(t *testing.T) {
	for name, maps := range map[string]mapsMemory{"it is out of reach": outOfReach, "it is too small": mapsOther(pool.MinBlock)} {
		t.Run(name, func(t *testing.T) {
			mappedLink(t, Config{}, func(t *testing.T, l *link) {
				l.ea.core.peers[l.a.p.id].cfg.Memory = maps(l.ea.core.cfg.Budget)
				a, b := l.dial(t)
				for range 3 {
					inFrames(t, a, b)
				}
				s := l.ea.Stats()
				assert.Zero(t, s.Copies.Mapped)
				assert.Zero(t, s.RDMAWrites)
				assert.Contains(t, a.LargePath(), "not mapped, so in frames: ")
				resetConns(t, a, b)
			})
		})
	}
}

// inFrames moves large data, and checks that all of it went in frames, that of Buffers too.
func inFrames(t *testing.T, from, to *Conn) {
	t.Helper()
	const size = 64 << 10
	before, begin := to.Seen().LargeIn, time.Now()
	go func() {
		assert.NoError(t, writeN(from, size))
		buf, err := from.AllocBuffer(size)
		assert.NoError(t, err)
		assert.NoError(t, sendBuffer(from, buf))
	}()
	require.NoError(t, readN(to, 2*size))
	assert.Equal(t, before, to.Seen().LargeIn)
	assert.Less(t, time.Since(begin), choreTime, "nobody waits for the ring")
	synctest.Wait() // for the lease, or for what could not be mapped
}

// TestInMidCopy: whatever happens while a writer copies, the reader gets what was copied, or the
// end of the conn, and nobody else gets the ring before the copy has ended.
func TestInMidCopy(t *testing.T) {
	const size = 64 << 10
	type mid struct {
		t    *testing.T
		l    *link
		a, b *Conn
	}
	for name, tt := range map[string]struct {
		lost      bool // the reader may miss the bytes
		forced    bool // the ring was taken by force
		unheard   bool // the writer knows that nobody has them
		meanwhile func(m mid)
	}{
		"nothing":                         {meanwhile: func(mid) {}},
		"revoked":                         {meanwhile: func(m mid) { locked(m.l.eb, m.b.stream.revoke) }},
		"the deadline":                    {meanwhile: func(m mid) { require.NoError(m.t, m.a.SetWriteDeadline(time.Unix(1, 0))) }},
		"CloseWrite":                      {meanwhile: func(m mid) { require.NoError(m.t, m.a.CloseWrite()) }},
		"Close":                           {meanwhile: func(m mid) { go func() { assert.NoError(m.t, m.a.Close()) }() }},
		"Close with a reset":              {lost: true, meanwhile: func(m mid) { resetConns(m.t, m.a) }},
		"the reader's Close":              {lost: true, meanwhile: func(m mid) { go func() { assert.NoError(m.t, m.b.Close()) }() }},
		"the reader's Close with a reset": {lost: true, meanwhile: func(m mid) { resetConns(m.t, m.b) }},
		"the reader's CloseRead":          {lost: true, meanwhile: func(m mid) { require.NoError(m.t, m.b.CloseRead()) }},
		"the writer gives the peer up":    {lost: true, forced: true, unheard: true, meanwhile: func(m mid) { m.l.a.Lost(errInjected) }},
		"the reader gives the peer up":    {lost: true, forced: true, meanwhile: func(m mid) { m.l.b.Lost(errInjected) }},
		"the writer's endpoint is closed": {lost: true, forced: true, unheard: true, meanwhile: func(m mid) { require.NoError(m.t, m.l.ea.Close()) }},
		"the reader's endpoint is closed": {lost: true, forced: true, meanwhile: func(m mid) { require.NoError(m.t, m.l.eb.Close()) }},
	} {
		t.Run(name, func(t *testing.T) {
			mappedConn(t, Config{}, func(t *testing.T, l *link, a, b *Conn) {
				synctest.Wait() // the ring may have grown
				var w copied
				locked(l.ea, func() { w = a.stream.prepareCopy(size) })
				require.Len(t, w.mem, size)
				ring := b.stream.inLease
				tt.meanwhile(mid{t, l, a, b})
				time.Sleep(3 * choreTime)
				synctest.Wait()
				if !tt.forced {
					assert.NotEqual(t, leaseDropped, ring.state, "the ring is free while somebody writes to it")
				}
				want := bytes.Repeat([]byte{7}, size)
				copy(w.mem, want)
				locked(l.ea, func() { assert.Equal(t, !tt.unheard, a.stream.commitCopy(&w)) })
				if !tt.lost {
					require.True(t, bytes.Equal(want, mustRead(t, b, size)))
				}
				synctest.Wait()
				giveUp(a, b)
				synctest.Wait()
				assert.Zero(t, l.ea.core.copying)
				if !tt.forced {
					assert.Equal(t, leaseDropped, ring.state)
				}
			})
		})
	}
}

// TestMappedAfterLoss: a peer that was given up goes on writing to its ring, but nobody reads that.
func TestMappedAfterLoss(t *testing.T) {
	mappedConn(t, Config{}, func(t *testing.T, l *link, a, b *Conn) {
		var w copied
		locked(l.ea, func() { w = a.stream.prepareCopy(64 << 10) })
		w.mem[0] = 7
		l.b.Lost(errInjected)
		require.ErrorIs(t, readN(b, 1), syscall.ECONNRESET)
		closeConns(t, b)
		require.NoError(t, l.eb.Close()) // as its owner does when the last conn is closed
		assert.Zero(t, w.mem[0], "the pages are still there")
		copy(w.mem, bytes.Repeat([]byte{7}, len(w.mem)))
		locked(l.ea, func() { a.stream.commitCopy(&w) })
		l.a.Lost(errInjected)
		require.ErrorIs(t, writeN(a, 1), syscall.ECONNRESET)
		resetConns(t, a)
	})
}

// TestRevokedBeforeMapped: a ring that is revoked before its memory is mapped comes back.
func TestRevokedBeforeMapped(t *testing.T) {
	mappedLink(t, Config{}, func(t *testing.T, l *link) {
		mapping, goOn := make(chan struct{}), make(chan struct{})
		p := l.ea.core.peers[l.a.p.id]
		open := p.cfg.Memory
		p.cfg.Memory = func(n pool.SharedName) (*pool.Slab, error) {
			close(mapping)
			<-goOn
			return open(n)
		}
		a, b := l.dial(t)
		go func() { assert.NoError(t, writeN(a, 100_000)) }()
		<-mapping
		locked(l.eb, func() { b.stream.revoke() })
		require.NoError(t, readN(b, 100_000)) // in frames
		synctest.Wait()
		assert.NotNil(t, b.stream.inLease)
		close(goOn)
		synctest.Wait()
		assert.Nil(t, b.stream.inLease)
		assert.Zero(t, b.Seen().LargeIn)
		resetConns(t, a, b)
	})
}

// TestDeadlineInRing: a writer whose ring is full waits no longer than its deadline says.
func TestDeadlineInRing(t *testing.T) {
	mappedConn(t, Config{Ring: 64 << 10}, func(t *testing.T, _ *link, a, b *Conn) {
		require.NoError(t, a.SetWriteDeadline(time.Now().Add(time.Second)))
		start := time.Now()
		n, err := a.Write(make([]byte, 1<<20))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		assert.Equal(t, time.Second, time.Since(start))
		require.NoError(t, a.CloseWrite())
		got, err := io.ReadAll(b)
		require.NoError(t, err)
		assert.Len(t, got, n)
		resetConns(t, a, b)
	})
}

// TestMappedIdle: a conn that is no longer used keeps no timer busy, and of the peer's memory only what is yet to be read.
func TestMappedIdle(t *testing.T) {
	for name, tt := range map[string]struct {
		use     func(t *testing.T, a, b *Conn)
		foreign bool
	}{
		"nothing is left": {use: func(*testing.T, *Conn, *Conn) {}},
		"CloseWrite": {use: func(t *testing.T, a, b *Conn) {
			require.NoError(t, a.CloseWrite())
			_, err := io.ReadAll(b)
			require.NoError(t, err)
		}},
		"the reader's Close":              {use: func(_ *testing.T, _, b *Conn) { begin(b.Close) }},
		"the reader's Close with a reset": {use: func(t *testing.T, _, b *Conn) { resetConns(t, b) }},
		"it is not read":                  {foreign: true, use: func(t *testing.T, a, _ *Conn) { require.NoError(t, writeN(a, 200_000)) }},
	} {
		t.Run(name, func(t *testing.T) {
			mappedConn(t, Config{}, func(t *testing.T, l *link, a, b *Conn) {
				tt.use(t, a, b)
				time.Sleep(time.Minute)
				synctest.Wait()
				locked(l.ea, func() { assert.False(t, l.ea.core.busy()) })
				assert.Equal(t, tt.foreign, l.ea.core.cfg.Budget.Stats().Foreign > 0)
				giveUp(a, b)
				synctest.Wait()
			})
		})
	}
}

// failsOnce lets the first mapping of the peer's memory fail.
func failsOnce(p *peer) {
	open, calls := p.cfg.Memory, 0
	p.cfg.Memory = func(s pool.SharedName) (*pool.Slab, error) {
		if calls++; calls == 1 {
			return nil, syscall.EMFILE
		}
		return open(s)
	}
}

// TestMappedAgain: a ring that could not be mapped once, as for want of descriptors, is when it is granted next.
func TestMappedAgain(t *testing.T) {
	mappedLink(t, Config{}, func(t *testing.T, l *link) {
		failsOnce(l.a.p)
		a, b := l.dial(t)
		inFrames(t, a, b)
		time.Sleep(10 * choreTime)
		warmUp(t, a, b)
		assert.NotZero(t, l.ea.Stats().Copies.Mapped)
		assert.Equal(t, byCopy.String(), a.LargePath())
		resetConns(t, a, b)
	})
}

// TestMappedAgainWhileBusy: so does that of a conn which never rests.
func TestMappedAgainWhileBusy(t *testing.T) {
	mappedLink(t, Config{}, func(t *testing.T, l *link) {
		failsOnce(l.a.p)
		a, b := l.dial(t)
		for range 200 { // 20 s
			carry(t, a, b, 64<<10)
			time.Sleep(choreTime / 10)
		}
		assert.NotZero(t, l.ea.Stats().Copies.Mapped)
		resetConns(t, a, b)
	})
}

// TestCloseWhileMapping: Close ends calls at once, even while memory is being mapped.
func TestCloseWhileMapping(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLink(t, simfabric.Config{Seed: 5, Personality: simfabric.Shm()}, Config{Spin: -1})
		mapping, goOn := make(chan struct{}), make(chan struct{})
		l.ea.core.peers[l.a.p.id].cfg.Memory = func(pool.SharedName) (*pool.Slab, error) {
			close(mapping)
			<-goOn
			return nil, errInjected
		}
		a, b := l.dial(t)
		require.NoError(t, writeN(a, 10_000)) // asks for a ring
		<-mapping
		ended := begin(func() error { return readN(a, 1) })
		synctest.Wait()
		closed := begin(l.ea.Close)
		synctest.Wait()
		select {
		case err := <-ended:
			assert.ErrorIs(t, err, syscall.ECONNRESET)
		default:
			assert.Fail(t, "Read waits for what is being mapped")
		}
		close(goOn)
		require.NoError(t, <-closed)
		l.b.Lost(errInjected)
		giveUp(a, b)
		require.NoError(t, l.eb.Close())
	})
}

// Mapped rings where descriptors, mappings or receives are short, or a peer uses them up.

// TestOutOfDescriptors: while descriptors are short no ring can be made that a peer could map. Large data
// goes in frames then, and no other endpoint hears that memory is short: its rings would be of no help.
func TestOutOfDescriptors(t *testing.T) {
	mappedLink(t, Config{}, func(t *testing.T, l *link) {
		a, b := l.dial(t)
		var limit syscall.Rlimit
		require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit))
		restore := func() { require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit)) }
		defer restore()
		require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Max: limit.Max}))
		for range 3 {
			inFrames(t, a, b)
		}
		assert.Zero(t, l.eb.core.cfg.Budget.Shortages())
		restore()
		time.Sleep(3 * choreTime)
		warmUp(t, a, b)
		assert.NotZero(t, b.Seen().LargeIn, "there is a ring again")
		resetConns(t, a, b)
	})
}

// TestLeasesOfNewMemory: a peer that makes new memory for each lease takes few of the mappings that all share.
func TestLeasesOfNewMemory(t *testing.T) {
	mappedLink(t, Config{}, func(t *testing.T, l *link) {
		a, b := l.dial(t)
		for range 3 * mostUnused {
			theirs, ring, err := sharedBlock(pool.MinBlock, l.b.local.Token)
			require.NoError(t, err)
			var payload [framing.LeaseSize]byte
			(&framing.Lease{Index: 1, Chunk: pool.MinBlock, Size: pool.MinBlock, Remote: framing.Remote{Key: ring.Shared.Inode, FD: ring.Shared.FD}}).Encode(payload[:])
			locked(l.ea, func() { require.NoError(t, a.stream.leased(payload[:])) })
			synctest.Wait()
			locked(l.ea, func() {
				assert.True(t, a.stream.copies())
				a.stream.revoked()
			})
			synctest.Wait()
			require.NoError(t, theirs.Close())
			require.LessOrEqual(t, len(l.a.p.mapped), mostUnused+2)
		}
		assert.LessOrEqual(t, l.ea.core.cfg.Budget.Stats().Foreign, int64(mostUnused+2)*pool.MinBlock)
		resetConns(t, a, b)
	})
}

// noRecvs is a fabric that takes no receives.
type noRecvs struct {
	fabric.Endpoint
	asked chan struct{}
	told  atomic.Bool
}

func (f *noRecvs) Exchange(ops []fabric.Op, done []fabric.Completion) (posted, reaped int, err error) {
	if i := slices.IndexFunc(ops, func(op fabric.Op) bool { return op.Kind == fabric.Recv }); i >= 0 {
		if f.told.CompareAndSwap(false, true) {
			close(f.asked)
		}
		ops = ops[:i]
	}
	return f.Endpoint.Exchange(ops, done)
}

// TestClosedWhileNewcomerWaits: an endpoint that is closed while a peer waits for its receives keeps nothing mapped.
func TestClosedWhileNewcomerWaits(t *testing.T) {
	for range 50 {
		fab, err := simfabric.New(simfabric.Config{Seed: 1, Personality: simfabric.Shm()}).Open(simfabric.Shm().Provider, netip.Addr{})
		require.NoError(t, err)
		f := &noRecvs{Endpoint: fab, asked: make(chan struct{})}
		b := pool.NewBudget(0)
		e, err := NewEndpoint(f, Config{Budget: b})
		require.NoError(t, err)
		ended := begin(func() error {
			_, err := e.NewPeer(PeerConfig{Memory: opens(b)})
			return err
		})
		<-f.asked
		require.NoError(t, e.Close())
		require.Error(t, <-ended)
		require.Zero(t, b.Stats().Used)
	}
}
