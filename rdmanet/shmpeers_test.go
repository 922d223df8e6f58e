package rdmanet_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// TestTooManyShmPeers: if either side has as many peers over shared memory as it may have, a
// further one gets the next provider that both sides name, or an error that says so.
func TestTooManyShmPeers(t *testing.T) {
	const next = "tcp;ofi_rxm"
	full := map[string]struct {
		here, there bool
		where       string // as the error says
	}{
		"the dialer":   {here: true, where: "here"},
		"the listener": {there: true, where: "at the peer"},
		"both":         {here: true, there: true, where: "at the peer"},
	}
	for _, preset := range simfabric.Presets() {
		if !preset.PerPeer {
			continue
		}
		shm := preset.Provider
		for name, named := range map[string]struct {
			dialer, listener []string
			provider         string // which is used
		}{
			"no other":          {dialer: []string{shm}, listener: []string{shm}},
			"one by the dialer": {dialer: []string{shm, next}, listener: []string{shm}},
			"one by both":       {dialer: []string{shm, next}, listener: []string{shm, next}, provider: next},
			"one before it":     {dialer: []string{shm, next}, listener: []string{next, shm}, provider: next},
		} {
			for side, f := range full {
				t.Run(preset.Name+", "+name+", "+side, func(t *testing.T) {
					n := simfabric.New(simfabric.Config{Seed: 1, Personality: preset.Personality, Others: []simfabric.Personality{simfabric.TCP()}})
					here, there := rdmanet.NewTransport(n), rdmanet.NewTransport(n)
					rdmatest.Cleanly(t, here)
					defer there.Close()
					if f.here {
						here.MaxShmPeers = 1
					}
					if f.there {
						there.MaxShmPeers = 1
					}
					l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there, Providers: named.listener})
					fill := func(tr *rdmanet.Transport) { // with a peer that is not idle
						other := rdmanet.NewTransport(n)
						t.Cleanup(func() { assert.NoError(t, other.Close()) })
						c, s := rdmatest.Meet(t, &rdmanet.Dialer{Transport: tr, Providers: []string{shm}},
							rdmatest.Listen(t, rdmanet.ListenConfig{Transport: other, Providers: []string{shm}}))
						require.Equal(t, shm, c.Info().Provider)
						t.Cleanup(func() { rdmatest.CloseAll(t, c, s) })
					}
					if f.here {
						fill(here)
					}
					if f.there {
						fill(there)
					}
					d := &rdmanet.Dialer{Transport: here, Providers: named.dialer}
					if named.provider == "" {
						_, err := d.Dial("rdma", l.Addr().String())
						require.ErrorIs(t, err, rdmanet.ErrTooManyShmPeers)
						assert.ErrorIs(t, err, rdmanet.ErrNoProvider)
						assert.ErrorContains(t, err, rdmanet.ErrTooManyShmPeers.Error()+" "+f.where)
						assert.ErrorContains(t, err, "raise Transport.MaxShmPeers "+f.where)
						assert.ErrorContains(t, err, "name "+next+" on both sides")
						assert.Equal(t, uint64(1), here.Stats().HandshakeFailures["too many peers over shm"])
						return
					}
					c, s := rdmatest.Meet(t, d, l)
					for _, conn := range []*rdmanet.Conn{c, s} {
						info := conn.Info()
						assert.Equal(t, named.provider, info.Provider)
						if named.listener[0] == next { // the listener prefers it anyway
							assert.Empty(t, info.Refused)
							continue
						}
						require.Len(t, info.Refused, 1)
						assert.Contains(t, info.Refused[0].Reason, rdmanet.ErrTooManyShmPeers.Error())
						assert.Contains(t, info.Refused[0].Reason, "Transport.MaxShmPeers")
					}
					rdmatest.Echo(t, c, s)
					rdmatest.CloseAll(t, c, s)
				})
			}
		}
	}
}
