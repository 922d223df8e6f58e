//go:build linux && cgo

package systemtest

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/race"
	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// TestDialsAtOnce: when many processes dial at the same time, all of them get in, and soon,
// whether they have been there for a while or, in the long form, are just starting. They are
// more than may prove themselves at a time.
func TestDialsAtOnce(t *testing.T) {
	for _, s := range scales(rdmatest.AllRounds(40, 100)) {
		for _, how := range []string{"waiting", "starting"}[:rdmatest.AllRounds(1, 2)] {
			t.Run(s.providers[0]+", "+how, func(t *testing.T) {
				tr := &rdmanet.Transport{MaxShmPeers: s.shm}
				rdmatest.CleanlyBut(t, 2, tr)
				l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr, Providers: s.providers, Backlog: s.members})
				start := time.Now()
				var members []*memberProcess
				var dials []dialed
				if how == "waiting" {
					members = startMembers(t, s.members, s.providers, l.Addr().String())
					start = time.Now()
					dials = haveDial(t, members)
				} else {
					members, dials = startDialing(t, s, l.Addr().String())
				}
				t.Logf("all %d are in after %v; %s", s.members, time.Since(start), summary(dials))
				t.Logf("handshake failures %v", tr.Stats().HandshakeFailures)
				bound := 3 * time.Second
				if race.Enabled || !*rdmatest.Soak { // the machine may have other things to do
					bound = rdmatest.Patience
				}
				got := make(map[string]int)
				for i, d := range dials {
					assert.NoError(t, d.err, "member %d", i)
					assert.Less(t, d.took, bound, "member %d", i)
					got[d.provider]++
				}
				assert.Equal(t, s.want, got)
				for range s.members {
					c := rdmatest.Accept(t, l)
					require.NoError(t, c.SetLinger(0))
					require.NoError(t, c.Close())
				}
				for _, m := range members {
					m.end(t)
				}
			})
		}
	}
}

// startDialing starts all members at once, and makes them dial as soon as they can.
func startDialing(t *testing.T, s scale, addr string) (members []*memberProcess, dials []dialed) {
	t.Helper()
	for range s.members {
		cmd := rdmatest.Process(t, "member", strings.Join(s.providers, ","), addr)
		in, out := rdmatest.Start(t, cmd)
		m := &memberProcess{cmd, in, out}
		require.NoError(t, m.tell())
		members = append(members, m)
	}
	for _, m := range members {
		require.Equal(t, "here", rdmatest.Line(t, m.out))
		dials = append(dials, m.dialed())
	}
	return members, dials
}

// summary says how long dials took.
func summary(dials []dialed) string {
	var took []time.Duration
	for _, d := range dials {
		took = append(took, d.took)
	}
	slices.Sort(took)
	return "dials: median " + took[len(took)/2].String() + ", slowest " + took[len(took)-1].String()
}
