package engine

import (
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/pool"
)

// ringSizes returns how large the rings are for what the conn receives, first the one that takes what comes.
func ringSizes(c *Conn) (sizes []int) {
	c.e.mu.Lock()
	defer c.e.mu.Unlock()
	for _, l := range []*inLease{c.stream.inLease, c.stream.oldLease, c.stream.nextLease} {
		if l != nil {
			sizes = append(sizes, len(l.Ring.Bytes))
		}
	}
	return sizes
}

// growing is virtual with one conn, whose rings grow from first bytes to most.
func growing(t *testing.T, first, most int, cfg Config, test func(t *testing.T, l *link, a, b *Conn)) {
	t.Helper()
	cfg.first, cfg.Ring = first, most
	virtual(t, cfg, func(t *testing.T, l *link) {
		a, b := l.dial(t)
		test(t, l, a, b)
	})
}

// TestRingGrows: round trips that fit the first ring never make it grow. A writer that finds it full gets a
// second one, although nobody reads, and goes on in that; the first one is gone once it was read. What a
// conn holds is bounded, and arrives as it was sent, also if the user holds pieces of the first ring for long.
func TestRingGrows(t *testing.T) {
	growing(t, 256<<10, 1<<20, Config{Window: 64 << 10}, func(t *testing.T, l *link, a, b *Conn) {
		warmUpBy(t, a, b, 16<<10) // which asks for no more
		for range 40 {
			for _, way := range [][2]*Conn{{a, b}, {b, a}} {
				carry(t, way[0], way[1], 16<<10)
			}
		}
		require.Equal(t, []int{256 << 10}, ringSizes(b), "what fits")

		sent := fillWith(t, a, 32<<10)
		require.Equal(t, []int{1 << 20, 256 << 10}, ringSizes(b), "both are full")
		assert.Greater(t, sent, 1<<20, "they hold")
		assert.Less(t, sent, 1<<20+256<<10+2*DefaultMaxWindow, "no more than they should")

		require.NoError(t, b.SetReadDeadline(time.Now().Add(time.Minute)))
		held := hold(t, b, 384<<10) // of both
		at := 0
		for _, h := range held {
			checkFrom(t, at, h.Bytes())
			at += len(h.Bytes())
		}
		checkFrom(t, at, mustRead(t, b, sent-at))
		assert.Equal(t, []int{1 << 20, 256 << 10}, ringSizes(b), "the user holds some of the first")
		at = 0
		for _, h := range held {
			checkFrom(t, at, h.Bytes()) // still as it was
			at += len(h.Bytes())
			h.Release()
		}
		assert.Equal(t, []int{1 << 20}, ringSizes(b), "nobody holds any")
		resetConns(t, a, b)
		time.Sleep(time.Second)
		locked(l.eb, func() { assert.Zero(t, l.eb.core.leases.out()) })
	})
}

// TestRingFits: a writer of large pieces gets a larger ring before it finds the first one full.
func TestRingFits(t *testing.T) {
	growing(t, 256<<10, 1<<20, Config{}, func(t *testing.T, _ *link, a, b *Conn) {
		warmUp(t, a, b)
		for range 8 { // it may take a while until the second one is there
			carry(t, a, b, stepSize)
			time.Sleep(time.Millisecond)
		}
		assert.Equal(t, []int{1 << 20}, ringSizes(b))
		resetConns(t, a, b)
	})
}

// TestRingRefused: a writer that cannot map the second ring goes on in the first, and asks for no other.
func TestRingRefused(t *testing.T) {
	mappedLink(t, Config{Ring: 1 << 20, first: 256 << 10}, func(t *testing.T, l *link) {
		a, b := l.dial(t)
		p := l.ea.core.peers[l.a.p.id]
		open := p.cfg.Memory
		p.cfg.Memory = func(name pool.SharedName) (*pool.Slab, error) {
			if len(ringSizes(b)) > 1 {
				return nil, errInjected
			}
			return open(name)
		}
		for range 20 {
			carry(t, a, b, stepSize)
			time.Sleep(time.Millisecond)
		}
		assert.Equal(t, []int{256 << 10}, ringSizes(b))
		assert.Equal(t, byCopy.String(), a.LargePath())
		assert.Equal(t, errInjected, a.stream.p.unmapped)
		before := a.Seen().LargeOut
		carry(t, a, b, stepSize)
		assert.EqualValues(t, stepSize, a.Seen().LargeOut-before, "in the ring")
		time.Sleep(5 * choreTime)
		assert.Empty(t, ringSizes(b), "idle conns have none")
		resetConns(t, a, b)
	})
}

// TestGrowthRefused: a ring that could not grow for want of memory does so later, and the peer's other conns get rings, too.
func TestGrowthRefused(t *testing.T) {
	growing(t, 128<<10, 1<<20, Config{Budget: pool.NewBudget(64 << 20)}, func(t *testing.T, l *link, a, b *Conn) {
		warmUpBy(t, a, b, 16<<10)
		require.Equal(t, []int{128 << 10}, ringSizes(b))
		var taken int64
		locked(l.eb, func() {
			b.stream.filled(uint64(b.stream.inLease.Index))
			s := l.eb.core.cfg.Budget.Stats() // others are faster
			taken = s.Limit - s.Used - 1<<20
			require.NoError(t, l.eb.core.cfg.Budget.Reserve(taken))
		})
		time.Sleep(10 * choreTime)
		assert.Zero(t, l.eb.core.cfg.Budget.Shortages(), "nobody else has to give up a ring for that")
		l.eb.core.cfg.Budget.Release(taken)
		c, d := l.dial(t)
		fillWith(t, c, 32<<10)
		fillWith(t, a, 32<<10)
		time.Sleep(10 * choreTime)
		assert.Equal(t, []int{1 << 20, 128 << 10}, ringSizes(d))
		assert.Equal(t, []int{1 << 20, 128 << 10}, ringSizes(b))
		resetConns(t, a, b, c, d)
	})
}

// TestRingsThatGrowTogether: a ring that is about to go is no ring more among which the peer's memory is divided.
func TestRingsThatGrowTogether(t *testing.T) {
	virtual(t, Config{Ring: 2 << 20, first: 256 << 10}, func(t *testing.T, l *link) {
		near, far := l.dials(t, ringsTotal/(2<<20))
		for range 40 {
			for _, c := range near {
				go func() { _, _ = c.Write(make([]byte, stepSize)) }()
			}
			for _, c := range far {
				mustRead(t, c, stepSize)
			}
			time.Sleep(time.Millisecond)
		}
		for _, c := range far {
			assert.Equal(t, []int{2 << 20}, ringSizes(c))
		}
		resetConns(t, append(near, far...)...)
	})
}

// TestNoRingForNobody: what nobody will read gets no second ring, and loses it with the peer.
func TestNoRingForNobody(t *testing.T) {
	growing(t, 256<<10, 1<<20, Config{}, func(t *testing.T, l *link, a, b *Conn) {
		warmUpBy(t, a, b, 16<<10)
		locked(l.ea, func() { a.stream.p.doom(ErrEndpointClosed) }) // so that no Return comes
		locked(l.eb, func() { b.stream.filled(uint64(b.stream.inLease.Index)) })
		time.Sleep(time.Millisecond)
		require.Len(t, ringSizes(b), 2)
		locked(l.eb, func() { b.stream.p.doom(ErrStuck) })
		assert.Equal(t, []int{256 << 10}, ringSizes(b), "the peer is lost")
		closeConns(t, a, b)
	})
	growing(t, 256<<10, 1<<20, Config{}, func(t *testing.T, l *link, a, b *Conn) {
		warmUpBy(t, a, b, 16<<10)
		locked(l.eb, func() {
			b.stream.close()
			b.stream.filled(uint64(b.stream.inLease.Index))
			assert.Equal(t, claimNone, b.stream.claim, "a conn that was closed")
			assert.Nil(t, b.stream.nextLease)
		})
		closeConns(t, a)
	})
}

// TestRingStays: a ring does not grow while memory is short, but does once it is not.
func TestRingStays(t *testing.T) {
	growing(t, 128<<10, 1<<20, Config{Budget: pool.NewBudget(16 << 20)}, func(t *testing.T, l *link, a, b *Conn) {
		s := l.eb.core.cfg.Budget.Stats()
		taken := s.Limit*5/8 - s.Used
		require.NoError(t, l.eb.core.cfg.Budget.Reserve(taken))
		fillWith(t, a, 32<<10)
		time.Sleep(5 * choreTime)
		assert.Equal(t, []int{128 << 10}, ringSizes(b), "memory is short")
		l.eb.core.cfg.Budget.Release(taken)
		fillWith(t, a, 32<<10)
		time.Sleep(5 * choreTime)
		assert.Equal(t, []int{1 << 20, 128 << 10}, ringSizes(b), "memory is there")
		resetConns(t, a, b)
	})
}

// TestHostileGrowth: a peer that has rings grow, and says all that concerns rings in any order, does no harm.
// Scripts drawn at random hardly ever come to a second ring: these are made of what leads there.
func TestHostileGrowth(t *testing.T) {
	frame := func(kind framing.Type, flags, stream byte, rest ...byte) []byte {
		return append([]byte{0, byte(slices.Index(frameTypes, kind)), flags, stream, 0, 0, 0}, rest...)
	}
	const passTime, write, read, borrow, giveBack, announcedWrite = 16, 18, 19, 21, 22, 29 // indices of actions
	want := byte(slices.Index(flagSets, framing.FlagWant))
	seen := map[string]bool{}
	for seed := range uint64(200) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 12))
			sc := newScene(t, hostileSim(&reader{[]byte{byte(rng.IntN(128))}}))
			do := func(script []byte) {
				for i := range script {
					if i > 0 && rng.IntN(300) == 0 {
						script[i] = byte(rng.Uint32())
					}
				}
				actions[int(script[0])%len(actions)](sc, &reader{script[1:]})
				sc.check()
				for _, s := range sc.bad.streams {
					seen["a second ring"] = seen["a second ring"] || s.nextLease != nil
					seen["an old ring"] = seen["an old ring"] || s.oldLease != nil
				}
			}
			do(frame(framing.TypeOpen, 0, 0, 0))
			do([]byte{17})
			do(frame(framing.TypeAccept, 0, 1, 0))
			for range 20 + rng.IntN(120) {
				stream, lease := byte(rng.IntN(2)), byte(rng.IntN(4))
				scripts := [][]byte{
					frame(framing.TypeWant, 0, stream, 200), frame(framing.TypeWant, 0, stream, 0, 0), frame(framing.TypeWant, 0, stream, 0, 0),
					{announcedWrite, stream, 150, 150, 150, 150}, {announcedWrite, stream, 50, 150, 150, 150},
					frame(framing.TypeReturn, 0, stream, 0), frame(framing.TypeReturn, want, stream, 0),
					frame(framing.TypeLease, 0, stream, lease, 0, 0, 0, 0, 0), frame(framing.TypeLease, 0, stream, lease, 0, 0, 0, 0, 0),
					frame(framing.TypeRevoke, 0, stream), frame(framing.TypeData, 0, stream, 0, 0x70),
					{write, stream, 0xff}, {read, stream, 200, 0}, {borrow, stream}, {giveBack, stream}, {passTime, 40},
				}
				if rng.IntN(80) == 0 {
					scripts = [][]byte{frame(framing.TypeFin, 0, stream, 0), frame(framing.TypeReset, 0, stream, 1)}
				}
				do(scripts[rng.IntN(len(scripts))])
			}
			sc.finish()
		})
	}
	require.Equal(t, map[string]bool{"a second ring": true, "an old ring": true}, seen)
}

// TestWantBeforeReturn: the peer may find its second ring too small before the Return of the first, but says so once.
func TestWantBeforeReturn(t *testing.T) {
	for name, overtakes := range map[string]bool{"in order": false, "overtakes": true} {
		t.Run(name, func(t *testing.T) {
			sc := newScene(t, hostileSim(&reader{[]byte{1}}))
			send := func(kind framing.Type, pos uint64, payload []byte) {
				sc.pollHostile(16)
				sc.say(framing.Header{Type: kind, Stream: 1, Slots: sc.bad.used + 16, Window: 1 << 20, Pos: pos}, payload)
				for range 20 {
					sc.poll(sc.c, 8)
				}
				require.NoError(t, sc.bad.err)
			}
			send(framing.TypeOpen, 0, encode(framing.OpenSize, &framing.Open{Listener: hostileListener}))
			send(framing.TypeWant, 0, nil)
			s := sc.bad.streams[1]
			require.Len(t, s.inLease.Ring.Bytes, 16<<10)
			sc.c.rings.most = 32 << 10 // memory is rather short
			send(framing.TypeWant, 1+uint64(s.inLease.Index), nil)
			require.Len(t, s.nextLease.Ring.Bytes, 32<<10)
			sc.c.rings.most = 64 << 10
			want := 1 + uint64(s.nextLease.Index)
			if overtakes {
				send(framing.TypeWant, want, nil)
				send(framing.TypeReturn, 0, nil)
			} else {
				send(framing.TypeReturn, 0, nil)
				send(framing.TypeWant, want, nil)
			}
			require.Len(t, s.inLease.Ring.Bytes, 32<<10)
			require.Len(t, s.nextLease.Ring.Bytes, 64<<10)
			sc.finish()
		})
	}
}

// hold takes Buffers until n bytes are held, within a minute.
func hold(t *testing.T, b *Conn, n int) (held []*Buffer) {
	t.Helper()
	assert.NoError(t, b.SetReadDeadline(time.Now().Add(time.Minute)))
	for got := 0; got < n; {
		buf, err := b.RecvBuffer()
		if !assert.NoError(t, err, "%d of %d bytes held", got, n) {
			return held
		}
		held = append(held, buf)
		got += len(buf.Bytes())
	}
	return held
}

// holdSoon is hold, for which nobody has to wait for chores.
func holdSoon(t *testing.T, b *Conn, n int) []*Buffer {
	t.Helper()
	start := time.Now()
	held := hold(t, b, n)
	assert.Less(t, time.Since(start), choreTime)
	return held
}

// end releases what was held, and resets conns.
func end(t *testing.T, held []*Buffer, conns ...*Conn) {
	for _, h := range held {
		h.Release()
	}
	resetConns(t, conns...)
}

// busyBeside has another conn use staging memory until stop is called, as on a busy endpoint.
// Otherwise that memory is given back, and writers that wait for a ring send frames.
func busyBeside(t *testing.T, l *link) (stop func()) {
	c, d := l.dial(t)
	warmUp(t, c, d)
	var wg sync.WaitGroup
	over := make(chan struct{})
	wg.Go(func() {
		repeat(over, 300*time.Millisecond, func() {
			go func() { _, _ = c.Write(make([]byte, 20<<10)) }()
			_, _ = io.ReadFull(d, make([]byte, 20<<10))
		})
	})
	return func() {
		close(over)
		wg.Wait()
		end(t, nil, c, d)
	}
}

// waysToSend are the ways in which n bytes can be sent.
var waysToSend = map[string]func(t *testing.T, a *Conn, n int){
	"Write": func(_ *testing.T, a *Conn, n int) { _, _ = a.Write(make([]byte, n)) },
	"SendBuffer": func(t *testing.T, a *Conn, n int) {
		if buf, err := a.AllocBuffer(n); assert.NoError(t, err) {
			_ = sendBuffer(a, buf)
		}
	},
}

// TestHeldInSmallRing: a user that holds less than half of the smallest ring, across the ring's end, gets the rest.
func TestHeldInSmallRing(t *testing.T) {
	const k, size = 1 << 10, 64 << 10
	for name, send := range waysToSend {
		t.Run(name, func(t *testing.T) {
			virtual(t, Config{Ring: size}, func(t *testing.T, l *link) {
				defer busyBeside(t, l)()
				a, b := l.dial(t)
				warmUp(t, a, b)
				at := func() (pos uint64) {
					locked(l.ea, func() { pos = (a.stream.largeOut - a.stream.outLease.base) % size })
					return pos
				}
				for i := 0; at() < 44*k || at() > 53*k; i++ {
					require.Less(t, i, 100)
					mustWrite(t, a, make([]byte, 9*k))
					end(t, hold(t, b, 9*k))
				}
				first := size - int(at()) + 10*k
				require.Less(t, first, size/2)
				mustWrite(t, a, make([]byte, first))
				go send(t, a, 54*k)
				end(t, holdSoon(t, b, first+54*k), b, a)
			})
		})
	}
}

// TestHeldWrites: a user that holds as many writes as there may be, in a small part of a large ring, gets more.
func TestHeldWrites(t *testing.T) {
	const n, size = 80, 9 << 10
	for name, send := range waysToSend {
		t.Run(name, func(t *testing.T) {
			virtual(t, Config{Ring: 8 << 20}, func(t *testing.T, l *link) {
				defer busyBeside(t, l)()
				a, b := l.dial(t)
				warmUp(t, a, b)
				go func() {
					for range n {
						send(t, a, size)
					}
				}()
				end(t, holdSoon(t, b, n*size), b, a)
			})
		})
	}
}

// TestHeldSmallWrites: the same holds where the writes are small, and went to the ring because the window was full.
func TestHeldSmallWrites(t *testing.T) {
	virtual(t, Config{}, func(t *testing.T, l *link) {
		defer busyBeside(t, l)()
		a, b := l.dial(t)
		warmUp(t, a, b)
		total := 0
		for full := false; !full; {
			n, err := a.Write(make([]byte, a.stream.p.eager))
			total += n
			require.NoError(t, err)
			locked(l.ea, func() { full = a.stream.windowFull() })
		}
		require.NoError(t, a.SetWriteDeadline(time.Now().Add(time.Second)))
		for range framing.MaxWrites {
			n, err := a.Write(make([]byte, 100))
			if total += n; err != nil {
				break
			}
		}
		require.NoError(t, a.SetWriteDeadline(time.Time{}))
		held := hold(t, b, total)
		go func() {
			for range 4 {
				_, _ = a.Write(make([]byte, 20<<10))
			}
		}()
		end(t, append(held, holdSoon(t, b, 4*20<<10)...), b, a)
	})
}

// TestStallsRing: a ring that has room does not count as one that was waited for.
func TestStallsRing(t *testing.T) {
	growing(t, 1<<20, 1<<20, Config{}, func(t *testing.T, l *link, a, b *Conn) {
		warmUp(t, a, b)
		before := l.ea.Stats().Stalls.Ring
		for range 13 {
			mustWrite(t, a, make([]byte, 64<<10))
		}
		assert.Equal(t, before, l.ea.Stats().Stalls.Ring)
		end(t, nil, b, a)
	})
}
