package engine

import (
	"encoding/binary"
	"io"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/pool"
)

// witness is an endpoint that notes what is registered and sent.
type witness struct {
	fabric.Endpoint
	mu      sync.Mutex
	regions []*registration
	sent    [][]byte
}

type registration struct {
	pool.Region
	w      *witness
	mem    []byte
	access pool.Access
	open   bool
}

func newWitness(e fabric.Endpoint) fabric.Endpoint { return &witness{Endpoint: e} }

func (w *witness) Register(mem []byte, access pool.Access) (pool.Region, error) {
	r, err := w.Endpoint.Register(mem, access)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.regions = append(w.regions, &registration{r, w, mem, access, true})
	return w.regions[len(w.regions)-1], nil
}

func (r *registration) Close() error {
	err := r.Region.Close()
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	r.open = r.open && err != nil
	return err
}

func (w *witness) Exchange(ops []fabric.Op, done []fabric.Completion) (posted, reaped int, err error) {
	posted, reaped, err = w.Endpoint.Exchange(ops, done)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, op := range ops[:posted] {
		if op.Kind == fabric.Send || op.Kind == fabric.Inject {
			w.sent = append(w.sent, slices.Clone(op.Buf))
		}
	}
	return posted, reaped, err
}

// writable returns the keys of the memory that peers can write to now: by the peer that was given
// it, and all of them. Rings that are kept for path checks are left out.
func writable(e *Endpoint) (byPeer map[*peer][]uint64, all []uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	byPeer = map[*peer][]uint64{}
	for _, p := range e.core.peers {
		for _, s := range p.streams {
			for _, l := range []*inLease{s.oldLease, s.inLease, s.nextLease} {
				if l != nil {
					byPeer[p] = append(byPeer[p], l.Ring.Key)
				}
			}
		}
	}
	w := e.fab.(*witness)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.regions {
		if r.open && r.access == pool.AccessRemoteWrite {
			all = append(all, r.Key())
		}
	}
	for _, kept := range e.core.checkRings {
		all = slices.DeleteFunc(all, func(key uint64) bool { return key == kept.Region().Key() })
	}
	return byPeer, all
}

// TestOnlyRingsAreWritable: peers can write to landing rings, and to rings that are kept for path checks, and
// to nothing else. Each can write to its own rings only, and only for as long as it is there.
func TestOnlyRingsAreWritable(t *testing.T) {
	for _, name := range []string{"tcp", "verbs", "efa", "deliver"} { // with and without required local registration
		t.Run(name, func(t *testing.T) {
			const spokes = 3
			s := newStarOf(t, personalities()[name], Config{}, spokes, newWitness)
			defer s.close(t)
			var conns []*Conn
			for spoke := range spokes {
				for range 2 {
					a, b := s.dial(t, spoke)
					conns = append(conns, a, b)
					move(t, b, a, 0)
					_, all := writable(s.hub)
					if spoke == 0 {
						assert.Empty(t, all, "nobody has sent anything large to the hub")
					}
				}
			}
			for i := 0; i < len(conns); i += 2 {
				move(t, conns[i], conns[i+1], someUnread)
			}
			var byPeer map[*peer][]uint64
			var all []uint64
			owner := map[uint64]*peer{}
			require.Eventually(t, func() bool { // rings that have grown are given back
				byPeer, all = writable(s.hub)
				clear(owner)
				for p, keys := range byPeer {
					for _, key := range keys {
						assert.Contains(t, all, key)
						assert.Contains(t, []*peer{nil, p}, owner[key], "two peers have one key")
						owner[key] = p
					}
				}
				s.hub.mu.Lock()
				defer s.hub.mu.Unlock()
				inLanding := true // what is writable lies in landing memory
				for p, keys := range byPeer {
					inLanding = inLanding && len(slices.Compact(slices.Sorted(slices.Values(keys)))) == p.landing.Stats().Slabs
				}
				return len(all) == len(owner) && inLanding
			}, 5*time.Second, time.Millisecond, "regions that hold no ring are writable")
			require.Len(t, byPeer, spokes)
			gone := owner[all[0]]
			locked(s.hub, func() { gone.doom(io.ErrUnexpectedEOF) })
			_, left := writable(s.hub)
			for key, p := range owner {
				assert.Equal(t, p != gone, slices.Contains(left, key), "the peer that is gone has keys, and others have theirs")
			}
			giveUp(conns...)
			require.NoError(t, s.hub.Close())
			_, left = writable(s.hub)
			assert.Empty(t, left)
			for _, r := range s.hub.fab.(*witness).regions {
				assert.False(t, r.open)
			}
		})
	}
}

// someUnread is left to keep a ring: it goes after a second without a look, which a busy machine may cause.
const someUnread = 10_000

// move sends Buffers of large data until one goes by way of a ring: memory for that may be yet to come.
func move(t *testing.T, from, to *Conn, unread int) {
	t.Helper()
	const size = 300_000
	want := size - unread
	for before := to.Seen().LargeIn; to.Seen().LargeIn == before; want = size {
		b := allocBuffer(t, from, size)
		sent := begin(func() error { return sendBuffer(from, b) })
		require.NoError(t, readN(to, want))
		require.NoError(t, <-sent)
	}
}

// TestTokensDiffer: every peer has a token of its own, on either side.
func TestTokensDiffer(t *testing.T) {
	s := newStar(t, personalities()["tcp"], Config{}, 5)
	defer s.close(t)
	seen := map[[16]byte]bool{{}: true}
	for _, e := range append(s.spokes, s.hub) {
		locked(e, func() {
			for _, p := range e.core.peers {
				assert.False(t, seen[p.token], "token is used twice, or zero")
				seen[p.token] = true
			}
		})
	}
	assert.Len(t, seen, 11)
}

// TestOurs: a peer cannot give our token as its own, whose mark would make our memory its, nor an endpoint's name of ours.
func TestOurs(t *testing.T) {
	l := newLink(t, personalities()["shm"], Config{})
	defer l.close(t)
	for what, lie := range map[string]func(a, ours *framing.Attach){
		"token":           func(a, ours *framing.Attach) { a.Token = ours.Token },
		"endpoint's name": func(a, ours *framing.Attach) { a.Name = ours.Name },
	} {
		remote, ours := l.b.Local(), l.a.Local()
		lie(&remote, &ours)
		err := l.a.Connect(t.Context(), remote)
		require.ErrorIs(t, err, errProtocol)
		require.ErrorContains(t, err, "our "+what)
	}
}

// TestFramesOfStrangers: somebody who knows a frame that one peer has sent can do nothing with it
// as another peer, or to another peer. The frame is dropped, and the conns go on.
func TestFramesOfStrangers(t *testing.T) {
	s := newStarOf(t, simfabric.Config{Personality: simfabric.TCP()}, Config{}, 2, newWitness)
	defer s.close(t)
	var conns [][2]*Conn
	for spoke := range 2 {
		a, b := s.dial(t, spoke)
		conns = append(conns, [2]*Conn{a, b})
		carry(t, a, b, 5)
	}
	data := func(e *Endpoint) []byte {
		w := e.fab.(*witness)
		w.mu.Lock()
		defer w.mu.Unlock()
		i := slices.IndexFunc(w.sent, func(f []byte) bool { return f[0] == byte(framing.TypeData) })
		require.GreaterOrEqual(t, i, 0, "no data frame")
		return w.sent[i]
	}
	first, second := data(s.spokes[0]), data(s.spokes[1])
	with := func(f []byte, change func(f []byte)) []byte {
		f = slices.Clone(f)
		change(f)
		return f
	}
	stranger, err := s.net.Open("tcp;ofi_rxm", netip.Addr{})
	require.NoError(t, err)
	for name, tt := range map[string]struct {
		to    *Endpoint
		frame []byte
	}{
		"to another process":    {s.spokes[1], first},
		"in another's name":     {s.hub, with(first, func(f []byte) { copy(f[4:8], second[4:8]) })},
		"with a guess":          {s.hub, with(first, func(f []byte) { f[15] ^= 0x80 })},
		"without a proof":       {s.hub, with(first, func(f []byte) { clear(f[8:16]) })},
		"in the name of nobody": {s.hub, with(first, func(f []byte) { binary.LittleEndian.PutUint32(f[4:], 12345) })},
		"from a mirror":         {s.spokes[0], first},
	} {
		t.Run(name, func(t *testing.T) {
			addr, err := stranger.Insert(tt.to.fab.Name())
			require.NoError(t, err)
			before := tt.to.Stats()
			posted, _, err := stranger.Exchange([]fabric.Op{{Kind: fabric.Send, To: addr, Buf: tt.frame}}, nil)
			require.NoError(t, err)
			require.Equal(t, 1, posted)
			comesTrue(t, func() bool { return tt.to.Stats().FramesDropped == before.FramesDropped+1 })
			after := tt.to.Stats()
			assert.Zero(t, after.Violations)
			assert.Zero(t, after.PeersLost)
			for _, c := range conns {
				healthy(t, c[0], c[1])
			}
		})
	}
	for _, c := range conns {
		closeConns(t, c[:]...)
	}
	require.NoError(t, stranger.Close())
}

// TestForgedCompletionData: completion data about another peer's lease is believed
// only where that peer has no other way to say that its writes have landed.
func TestForgedCompletionData(t *testing.T) {
	for _, p := range []simfabric.Personality{simfabric.Net(), simfabric.TCP(), simfabric.Verbs(), simfabric.EFADirect()} {
		t.Run(p.Provider, func(t *testing.T) {
			believed := p.Provider == simfabric.EFADirect().Provider
			l, a, b := newConns(t, simfabric.Config{Seed: 1, Personality: p}, Config{})
			move(t, a, b, someUnread)
			l.eb.enter()
			in := b.stream.inLease
			before := l.eb.core.stats.WritesStray
			l.eb.core.landed(uint64(framing.MakeImmediate(in.Index, in.seq, false)))
			assert.Equal(t, believed, in.writes[in.seq%framing.MaxWrites].landed)
			assert.Equal(t, believed, l.eb.core.stats.WritesStray == before)
			l.eb.leave()
			resetConns(t, a, b)
		})
	}
}
