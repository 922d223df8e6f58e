package engine

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
)

// TestPathCheckBesideStopped: peers that were granted memory and write nothing, as stopped
// processes do, make room for those that wait. They do so soon enough: a dial that has an
// alternative gives a silent fabric a second before it blames it.
func TestPathCheckBesideStopped(t *testing.T) {
	besiege(t, simfabric.TCP(), func(b *besieged) {
		b.says(b.meet(), framing.Header{Type: framing.TypePing}, nil) // chores run from now on
		time.Sleep(choreTime / 2)
		for range probeSlots {
			b.probes(b.meet(), framing.Probe{Writes: framing.ProbeLength})
		}
		fe, err := b.net.Open(b.e.attr.Provider, netip.Addr{})
		require.NoError(t, err)
		other, err := NewEndpoint(fe, Config{Spin: -1})
		require.NoError(t, err)
		dialer, err := other.NewPeer(PeerConfig{})
		require.NoError(t, err)
		listener, err := b.e.NewPeer(PeerConfig{})
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(b.t.Context(), time.Second) // twice the patience of the handshake
		defer cancel()
		require.NoError(t, errors.Join(dialer.Connect(ctx, listener.Local()), listener.Connect(ctx, dialer.Local())))
		assert.NoError(t, dialer.Check(ctx))
		require.NoError(t, other.Close())
	})
}
