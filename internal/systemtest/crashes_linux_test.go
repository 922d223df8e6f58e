//go:build linux && cgo

package systemtest

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

func init() { rdmatest.Roles["many peers"] = manyPeers }

// manyPeers dials once for each line that it reads from standard input, each time with a new
// Transport, and obeys the other side's orders.
func manyPeers(provider, addr string) error {
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		d := rdmanet.Dialer{Transport: new(rdmanet.Transport), Providers: []string{provider}, Timeout: rdmatest.Patience}
		c, err := d.Dial("rdma", addr)
		if err != nil {
			return err
		}
		go func() { _ = rdmatest.Obey(c.(*rdmanet.Conn)) }()
	}
	return in.Err()
}

// TestCrashesAmongLongLivedPeers: however many peers have crashed, there are only as many
// endpoints as the living peers need, and each living peer still answers.
func TestCrashesAmongLongLivedPeers(t *testing.T) {
	const perProcess = 50
	for _, provider := range testenv.Shared() {
		t.Run(provider, func(t *testing.T) {
			tr := new(rdmanet.Transport)
			defer func() { assert.NoError(t, tr.Close()) }()
			l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr, Providers: []string{provider}, Backlog: victimConns})
			var stdin io.Writer
			var alive []*rdmanet.Conn
			times := rdmatest.Rounds(10, 200)
			for i := range times {
				if i%perProcess == 0 {
					cmd := rdmatest.Process(t, "many peers", provider, l.Addr().String())
					stdin, _ = rdmatest.Start(t, cmd)
				}
				_, err := fmt.Fprintln(stdin)
				require.NoError(t, err)
				c := rdmatest.Accept(t, l)
				rdmatest.Instruct(t, c, rdmatest.Order{Duty: rdmatest.Answer})
				alive = append(alive, c)
				killClient(t, tr, l, provider, time.Duration(i%20)*time.Millisecond)
			}
			most := 2 + times/30
			if provider == "tcp;ofi_rxm" { // with libfabric 1.17, its peers are spread over endpoints: fabric.ProviderInfo.Spread
				most = 2 + times/16
			}
			rdmatest.Eventually(t, func() bool { return tr.Stats().Peers == times }, "the dead are gone")
			s := tr.Stats()
			t.Logf("%d peers alive, as many crashed: %d endpoints, %d stale; %d MiB of memory in use",
				times, s.Providers[provider].Endpoints, s.Providers[provider].Stale, s.Memory.Used>>20)
			assert.LessOrEqual(t, s.Providers[provider].Endpoints, most)
			assert.Zero(t, s.PeersRefused)
			for i, c := range alive {
				if !rdmatest.Answers(t, c) {
					t.Fatalf("peer %d", i)
				}
				assert.NoError(t, c.SetLinger(0))
				_ = c.Close()
			}
		})
	}
}
