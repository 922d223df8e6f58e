package engine

import (
	"net/netip"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
)

// besieged is an endpoint with peers that say what a test has them say, and take nothing.
type besieged struct {
	t   *testing.T
	net *simfabric.Network
	e   *Endpoint
}

// besiege runs f with an endpoint of a personality.
func besiege(t *testing.T, p simfabric.Personality, f func(b *besieged)) {
	synctest.Test(t, func(t *testing.T) {
		b := &besieged{t: t, net: simfabric.New(simfabric.Config{Seed: 3, Personality: p})}
		e, err := b.net.Open(p.Provider, netip.Addr{})
		require.NoError(t, err)
		b.e, err = NewEndpoint(e, Config{Spin: -1})
		require.NoError(t, err)
		f(b)
		require.NoError(t, b.e.Close())
	})
}

// meet lets a peer in that grants as few slots as allowed.
func (b *besieged) meet() *peer {
	other, err := b.net.Open(b.e.attr.Provider, netip.Addr{})
	require.NoError(b.t, err)
	p, err := b.e.NewPeer(PeerConfig{})
	require.NoError(b.t, err)
	remote := p.Local()
	remote.Name, remote.Slots = other.Name(), framing.MinSlots
	remote.Token[0]++ // its own
	require.NoError(b.t, p.Connect(b.t.Context(), remote))
	b.t.Cleanup(func() { _ = other.Close() })
	return p.p
}

// locked runs f with the lock held, as a dispatch does.
func (b *besieged) locked(f func()) {
	b.e.enter()
	defer b.e.leave()
	f()
}

// says makes a peer's frame arrive.
func (b *besieged) says(p *peer, h framing.Header, payload []byte) {
	b.locked(func() {
		if _, err := p.handle(&h, payload, 0); err != nil {
			p.doom(err)
		}
	})
}

func (b *besieged) probes(p *peer, grant framing.Probe) {
	var payload [framing.ProbeSize]byte
	grant.Encode(payload[:])
	b.says(p, framing.Header{Type: framing.TypeProbe}, payload[:])
}

// held counts the slots that peers hold.
func (b *besieged) held() (n int) {
	b.locked(func() {
		ps := &b.e.core.probes
		for _, s := range append(append([]*probeSlot(nil), ps.dialing...), ps.listening...) {
			if s.peer != nil {
				n++
			}
		}
	})
	return n
}

// TestPathCheckOfFloodingPeer: a peer that asks for answers and takes none fails when it is given
// memory, which happens while another peer ends.
func TestPathCheckOfFloodingPeer(t *testing.T) {
	besiege(t, simfabric.TCP(), func(b *besieged) {
		first := b.meet()
		b.probes(first, framing.Probe{Writes: 1})
		for range probeSlots - 1 {
			b.probes(b.meet(), framing.Probe{Writes: 1})
		}
		flooder := b.meet()
		b.probes(flooder, framing.Probe{Writes: 1})
		b.locked(func() { require.Equal(t, []*peer{flooder}, b.e.core.probes.waiting) })
		for flooder.ctl.len() < maxControl {
			b.says(flooder, framing.Header{Type: framing.TypePing}, nil)
		}
		require.NoError(t, flooder.err)
		assert.NotPanics(t, func() { b.locked(func() { first.doom(errProtocol) }) })
		require.ErrorIs(t, flooder.err, errProtocol)
		assert.Equal(t, probeSlots-1, b.held(), "the others'")
	})
}

// TestPathCheckWithoutWrites: a peer that writes nothing passes at once, and holds no memory
// afterwards.
func TestPathCheckWithoutWrites(t *testing.T) {
	besiege(t, simfabric.TCP(), func(b *besieged) {
		for range 2 * probeSlots {
			b.probes(b.meet(), framing.Probe{Writes: 0})
		}
		assert.Zero(t, b.held())
		b.locked(func() { assert.Empty(t, b.e.core.probes.waiting) })
	})
}

// TestPathCheckOfLongWrites: a peer that says that it writes more than it is granted is cut off.
func TestPathCheckOfLongWrites(t *testing.T) {
	besiege(t, simfabric.Shm(), func(b *besieged) {
		p := b.meet()
		b.probes(p, framing.Probe{Writes: framing.MappedProbeLength + 1})
		require.ErrorIs(t, p.err, errProtocol)
	})
}

// TestPathCheckBeforeItBegins: what a listening side says before it is asked holds no memory for
// good.
func TestPathCheckBeforeItBegins(t *testing.T) {
	besiege(t, simfabric.TCP(), func(b *besieged) {
		var early []*peer
		for range probeSlots {
			p := b.meet()
			early = append(early, p)
			b.probes(p, framing.Probe{Writes: 1})
			b.locked(p.startCheck)
			b.locked(func() {
				p.met(needPong)
				p.awaitMemory()
			})
		}
		b.locked(func() {
			for _, p := range early {
				p.doom(errProtocol)
			}
		})
		assert.Zero(t, b.held())
	})
}

// dials begins a peer's path check here, with what memory it can have.
func (b *besieged) dials(p *peer) {
	b.locked(p.startCheck)
	b.locked(func() {
		p.met(needPong)
		p.awaitMemory()
	})
}

// TestPathCheckAfterLateWrite: where completion data does not prove whose it is, a write of a peer
// that was given up is not taken for one of the next peer, which has the same memory.
func TestPathCheckAfterLateWrite(t *testing.T) {
	besiege(t, simfabric.EFA(), func(b *besieged) {
		late, next := b.meet(), b.meet()
		b.dials(late)
		index, seq := late.probe.slot.index, late.probe.slot.seq
		b.probes(late, framing.Probe{Writes: framing.ProbeLength})
		b.locked(func() { late.doom(ErrStuck) })
		b.dials(next)
		b.probes(next, framing.Probe{Writes: framing.ProbeLength})
		b.locked(func() { b.e.core.landed(uint64(framing.MakeImmediate(index, seq, false))) })
		assert.NoError(t, next.probe.err)
		assert.Equal(t, probeDials, next.probe.state)
	})
}
