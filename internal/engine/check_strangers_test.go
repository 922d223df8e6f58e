package engine

import (
	"context"
	"errors"
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/pool"
)

// besieged is an endpoint with peers that say what a test has them say, and take nothing.
type besieged struct {
	t        *testing.T
	provider string
	net      *simfabric.Network
	e        *Endpoint
}

func besiege(t *testing.T, p simfabric.Personality, f func(b *besieged)) {
	synctest.Test(t, func(t *testing.T) {
		b := &besieged{t: t, provider: p.Provider, net: simfabric.New(simfabric.Config{Seed: 3, Personality: p})}
		b.e = b.open()
		f(b)
		require.NoError(t, b.e.Close())
	})
}

func (b *besieged) open() *Endpoint {
	return openOn(b.t, b.net, b.provider, Config{Spin: -1, Budget: pool.NewBudget(64 << 20)})
}

// meet lets a stranger in that grants as few slots as allowed.
func (b *besieged) meet() *peer {
	other, err := b.net.Open(b.provider, netip.Addr{})
	require.NoError(b.t, err)
	b.t.Cleanup(func() { _ = other.Close() })
	p, err := b.e.NewPeer(PeerConfig{Unproven: true, Memory: opens(pool.NewBudget(0))})
	require.NoError(b.t, err)
	remote := p.Local()
	remote.Name, remote.Slots = other.Name(), framing.MinSlots
	remote.Token[0]++ // its own
	require.NoError(b.t, p.Connect(b.t.Context(), remote))
	return p.p
}

// says makes a peer's frame arrive.
func (b *besieged) says(p *peer, h framing.Header, payload []byte) {
	locked(b.e, func() {
		b.e.core.touch(p)
		if _, err := p.handle(&h, payload, 0); err != nil {
			p.doom(err)
		}
	})
}

// opens has a peer open a stream to a listener.
func (b *besieged) opens(p *peer, stream, listener uint32) {
	payload := encode(framing.OpenSize, &framing.Open{Listener: listener})
	b.says(p, framing.Header{Type: framing.TypeOpen, Stream: stream, Window: 1 << 16}, payload)
}

// TestStrangersOpenOnlyTheCheck: a stranger can open its path check, once, and no conn.
func TestStrangersOpenOnlyTheCheck(t *testing.T) {
	besiege(t, simfabric.TCP(), func(b *besieged) {
		p := b.meet()
		b.opens(p, 1, 7)
		require.Empty(t, p.streams, "a conn before the check")
		b.opens(p, 2, checkListener)
		require.Contains(t, p.streams, uint32(2))
		b.opens(p, 3, checkListener)
		b.opens(p, 4, 7)
		assert.Len(t, p.streams, 1)
		assert.NoError(t, p.err)
	})
}

// TestStrangersHaveOneRing: however a stranger asks, it gets no more memory than its path check needs.
func TestStrangersHaveOneRing(t *testing.T) {
	for _, sim := range []simfabric.Personality{simfabric.TCP(), simfabric.Shm()} {
		besiege(t, sim, func(b *besieged) {
			p := b.checking()
			for i := range uint64(8) {
				locked(b.e, func() {
					assert.NoError(t, p.err)
					assert.LessOrEqual(t, p.landing.Stats().Mapped, int64(b.e.core.checkRing()))
					assert.Equal(t, i <= 4, p.streams[2].inLease != nil)
					assert.Nil(t, p.streams[2].nextLease)
				})
				b.says(p, framing.Header{Type: framing.TypeWant, Stream: 2}, nil)
				b.says(p, framing.Header{Type: framing.TypeWant, Stream: 2, Pos: 1 + i}, nil)
				if i == 4 {
					b.says(p, framing.Header{Type: framing.TypeReturn, Stream: 2}, nil)
				}
				time.Sleep(choreTime)
			}
		})
	}
}

// checking is meet, and the Open of a path check as stream 2.
func (b *besieged) checking() *peer {
	p := b.meet()
	b.opens(p, 2, checkListener)
	return p
}

// passes has a stranger pass its path check, as if it had moved what it has to.
func (b *besieged) passes(p *peer) {
	locked(b.e, func() {
		p.check = checkPassed
		p.cfg.Unproven = false
		p.cfg.Accept = func(*Conn, uint32) (uint16, framing.ResetCode) { return anyPort, 0 }
	})
}

// TestCheckRingsAreOfFriends: the ring of a path check whose handshake has not succeeded is nobody else's: a stranger
// knows its key.
func TestCheckRingsAreOfFriends(t *testing.T) {
	for _, tt := range []struct{ passed, admitted bool }{{}, {passed: true}, {admitted: true}} {
		besiege(t, simfabric.Net(), func(b *besieged) {
			p := b.meet()
			b.opens(p, 2, checkListener)
			locked(b.e, func() {
				p.cfg.Unproven = !tt.admitted
				if tt.passed {
					p.check = checkPassed
				}
			})
			b.says(p, framing.Header{Type: framing.TypeReturn, Stream: 2}, nil)
			(&Peer{e: b.e, p: p}).over(errSelf)
			locked(b.e, func() { assert.Empty(t, b.e.core.checkRings) })
		})
	}
}

// TestCheckRingsAreKept: the next path check has the rings of the last one, on both sides.
func TestCheckRingsAreKept(t *testing.T) {
	for _, sim := range []simfabric.Personality{simfabric.TCP(), simfabric.Net()} {
		n := simfabric.New(simfabric.Config{Seed: 1, Personality: sim})
		a, b := openOn(t, n, sim.Provider, Config{}), openOn(t, n, sim.Provider, Config{})
		for range 3 {
			dials, listens := introduce(t, a, b, nil)
			require.NoError(t, dials.Check(t.Context()))
			dials.Attached(Doorbell{}, Spill{})
			listens.Attached(Doorbell{}, Spill{})
			comesTrue(t, func() (kept bool) {
				locked(a, func() { kept = len(a.core.checkRings) == 1 })
				locked(b, func() { kept = kept && len(b.core.checkRings) == 1 })
				return kept
			}, sim.Provider)
			dials.over(errSelf)
			listens.over(errSelf)
		}
		require.NoError(t, errors.Join(a.Close(), b.Close()))
	}
}

// TestCheckRingsAreOfChecks: the ring of a path check, which an earlier peer may have had, never becomes that of a conn,
// and no more than a few are kept; mapped ones are not.
func TestCheckRingsAreOfChecks(t *testing.T) {
	for _, sim := range []simfabric.Personality{simfabric.TCP(), simfabric.Shm()} {
		besiege(t, sim, func(b *besieged) {
			var peers []*peer
			for len(peers) < 2*keptRings && (len(peers) == 0 || !sim.PerPeer) {
				peers = append(peers, b.checking())
			}
			for _, p := range peers {
				var ring *byte
				b.passes(p)
				locked(b.e, func() {
					ring = &p.streams[2].inLease.Ring.Bytes[0]
					p.supply.state = refused // a small ring will do
				})
				b.says(p, framing.Header{Type: framing.TypeReturn, Stream: 2}, nil)
				b.opens(p, 4, 7)
				b.says(p, framing.Header{Type: framing.TypeWant, Stream: 4}, nil)
				locked(b.e, func() {
					require.NoError(t, p.err)
					if l := p.streams[4].inLease; l != nil {
						assert.NotSame(t, ring, &l.Ring.Bytes[0])
					}
				})
			}
			kept := keptRings
			if sim.SameHost {
				kept = 0
			}
			locked(b.e, func() { assert.Len(t, b.e.core.checkRings, kept) })
			time.Sleep(3 * choreTime)
			locked(b.e, func() { assert.Empty(t, b.e.core.checkRings) })
		})
	}
}

// TestOnlyCheckRingsAreKept: a peer that ends its path check late leaves to the next one that ring, and none of its conns'.
func TestOnlyCheckRingsAreKept(t *testing.T) {
	besiege(t, simfabric.TCP(), func(b *besieged) {
		p := b.checking()
		b.passes(p)
		b.opens(p, 4, 7) // before it ends its check
		b.says(p, framing.Header{Type: framing.TypeWant, Stream: 4}, nil)
		time.Sleep(choreTime / 10)
		var bytes int
		locked(b.e, func() {
			require.NoError(t, p.err)
			require.NotNil(t, p.streams[4].inLease)
			bytes = len(p.streams[4].inLease.Ring.Bytes)
		})
		require.Greater(t, bytes, checkLarge)
		b.says(p, framing.Header{Type: framing.TypeReturn, Stream: 4}, nil) // its slab is kept for the next conn
		locked(b.e, func() { p.checkStream.close() })
		b.says(p, framing.Header{Type: framing.TypeReset, Stream: 2}, make([]byte, framing.ResetSize))
		locked(b.e, func() {
			require.NoError(t, p.err)
			require.NotContains(t, p.streams, uint32(2))
		})
		q := b.meet()
		locked(b.e, func() { assert.EqualValues(t, checkLarge, q.landing.Stats().Mapped) })
	})
}

// TestOnlyDialersCheck: a peer that we dial cannot begin a path check.
func TestOnlyDialersCheck(t *testing.T) {
	besiege(t, simfabric.TCP(), func(b *besieged) {
		p := b.meet()
		locked(b.e, func() { p.cfg.Unproven = false })
		b.opens(p, 77, checkListener)
		locked(b.e, func() { p.startCheck(); assert.Len(t, p.list, 1) })
	})
}

// TestStrangersSayTooMuch: a stranger that sends more than a path check needs fails, and takes no memory with that.
func TestStrangersSayTooMuch(t *testing.T) {
	besiege(t, simfabric.TCP(), func(b *besieged) {
		var pattern []byte
		data := func(p *peer, pos, n int) {
			b.says(p, framing.Header{Type: framing.TypeData, Stream: 2, Pos: uint64(pos), Window: 1 << 16}, pattern[pos:][:n])
		}
		begins := func() *peer {
			p := b.meet()
			locked(b.e, func() { p.rule = byNothing })
			b.opens(p, 2, checkListener)
			pattern = make([]byte, p.eager+200_000)
			framing.FillPattern(pattern, p.proofIn, 0)
			data(p, 0, p.eager)
			return p
		}
		more := func(p *peer) {
			for pos := p.eager; pos < len(pattern) && uint64(pos)+1000 <= p.streams[2].promised; pos += 1000 {
				data(p, pos, 1000)
			}
		}
		p := begins()
		locked(b.e, func() { require.Equal(t, checkRuns, p.check, "our own writes are still to come") })
		windows := p.windows
		more(p)
		locked(b.e, func() {
			assert.NoError(t, p.err)
			assert.Equal(t, checkFailed, p.check)
			assert.Equal(t, windows, p.windows)
		})
		q := begins()
		b.passes(q)
		more(q)
		locked(b.e, func() {
			assert.NoError(t, q.err)
			assert.Positive(t, q.streams[2].smallIn-uint64(q.eager))
			assert.Equal(t, windows, q.windows, "after the check")
		})
	})
}

// TestIdleDespiteCheck: a peer that does not answer the end of its path check can be let go.
func TestIdleDespiteCheck(t *testing.T) {
	besiege(t, simfabric.TCP(), func(b *besieged) {
		p := b.checking()
		b.passes(p)
		locked(b.e, p.endCheck)
		q := &Peer{e: b.e, p: p}
		conns, _, _ := q.Idle()
		assert.Zero(t, conns)
		assert.True(t, q.EndIdle(errSelf))
	})
}

// TestPathCheckBesideStopped: peers that begin their path check and write nothing, as if stopped, hold nobody up.
func TestPathCheckBesideStopped(t *testing.T) {
	besiege(t, simfabric.TCP(), func(b *besieged) {
		for range 16 {
			p := b.meet()
			b.opens(p, 1, checkListener)
			b.says(p, framing.Header{Type: framing.TypeWant, Stream: 1}, nil)
		}
		other := b.open()
		ctx, cancel := context.WithTimeout(b.t.Context(), time.Second/2) // the patience of the handshake
		defer cancel()
		dialer, _ := introduce(t, other, b.e, nil)
		assert.NoError(t, dialer.Check(ctx))
		require.NoError(t, other.Close())
	})
}

// TestPathCheckWaitsForMemory: where all memory is taken, a check waits. It neither passes nor fails.
func TestPathCheckWaitsForMemory(t *testing.T) {
	besiege(t, simfabric.TCP(), func(b *besieged) {
		other := b.open()
		dialer, listener := introduce(t, b.e, other, nil)
		var giveBack func()
		locked(b.e, func() { giveBack = b.e.core.takeStage() })
		begun := time.Now()
		ended := begin(func() error { return dialer.Check(b.t.Context()) })
		time.Sleep(choreTime / 2)
		assert.False(t, listener.Checked())
		locked(b.e, giveBack)
		require.NoError(t, <-ended)
		assert.GreaterOrEqual(t, time.Since(begun), choreTime/2)
		require.NoError(t, other.Close())
	})
}

// takeStage takes all staging chunks until they are given back. No more come meanwhile.
func (c *core) takeStage() (giveBack func()) {
	var taken []uint32
	for c.stage.Free() > 0 {
		slot, _ := c.stage.Get()
		taken = append(taken, slot)
	}
	c.staging.state = refused
	return func() {
		for _, slot := range taken {
			c.stage.Put(slot)
		}
		c.freed = true
	}
}

// TestUnproven: a peer whose path has not been checked cannot open conns.
func TestUnproven(t *testing.T) {
	n := simfabric.New(simfabric.Config{Seed: 1, Personality: simfabric.TCP()})
	ends := [2]*Endpoint{openOn(t, n, "tcp;ofi_rxm", Config{}), openOn(t, n, "tcp;ofi_rxm", Config{})}
	accepted := make(chan *Conn, 1)
	a, b := introduce(t, ends[0], ends[1], func(c *Conn, _ uint32) (uint16, framing.ResetCode) {
		accepted <- c
		return anyPort, 0
	})
	ctx := context.Background()
	assert.False(t, b.Heard())
	_, err := a.Open(ctx, 1)
	require.ErrorIs(t, err, syscall.ECONNREFUSED, "before the path check")
	assert.True(t, b.Heard())

	require.NoError(t, a.Check(ctx))
	a.Attached(Doorbell{}, Spill{})
	b.Attached(Doorbell{}, Spill{})
	c, err := a.Open(ctx, 1)
	require.NoError(t, err)
	s := <-accepted
	for range 100 {
		carry(t, c, s, 8)
	}
	assert.False(t, b.EndIdle(ErrEndpointClosed), "it has a conn")
	closeConns(t, s, c)
	require.Eventually(t, func() bool { return b.EndIdle(ErrEndpointClosed) }, 10e9, 1e6)
	for _, e := range ends {
		require.NoError(t, e.Close())
	}
}
