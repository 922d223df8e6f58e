//go:build linux && cgo && hosts

package systemtest

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

const (
	cutDeadAfter = time.Second
	// cutBound is how much longer it may take: one interval between heartbeats, and
	// the time until everything that waits has heard of it.
	cutBound = 2 * time.Second
	cutConns = 4
)

func init() { rdmatest.Roles["cut off"] = cutOff }

// cutOff moves data on the conns that it accepts, and prints how each direction of
// each conn ends.
func cutOff(providers, _ string) error {
	lc := rdmanet.ListenConfig{Providers: rdmatest.ProviderList(providers), Transport: &rdmanet.Transport{DeadAfter: cutDeadAfter}}
	l, err := lc.Listen(context.Background(), "rdma", testenv.Address())
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	ended := make(chan error)
	go func() {
		for i := uint64(0); ; i++ {
			c, err := l.Accept()
			if err != nil {
				ended <- err
				return
			}
			traffic(c, i, ended)
		}
	}()
	go func() {
		for err := range ended {
			if killed(err) {
				err = nil
			}
			fmt.Println("ended", err)
		}
	}()
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// If the cable is cut in mid-transfer, the conns end at both ends within the time that
// DeadAfter says, whether or not an end knows of the cut. Once the cable is back, the
// listener can be dialed again.
func TestHostsCut(t *testing.T) {
	for _, provider := range []string{"tcp;ofi_rxm", testenv.Native, rxd} {
		t.Run(provider, func(t *testing.T) {
			h := cabled(t)
			_, stdout := rdmatest.Start(t, h.process("cut off", provider, ""))
			_, port, err := net.SplitHostPort(rdmatest.Line(t, stdout))
			require.NoError(t, err)
			d := dialer(t, provider)
			d.Transport.DeadAfter = cutDeadAfter
			for range 3 {
				ended := make(chan error, 2*cutConns)
				var conns []*rdmanet.Conn
				for i := range cutConns {
					c, err := d.Dial("rdma4", net.JoinHostPort("far", port))
					require.NoError(t, err)
					traffic(c, uint64(i), ended)
					conns = append(conns, c.(*rdmanet.Conn))
				}
				for _, c := range conns {
					rdmatest.Eventually(t, func() bool { _, in := rdmatest.Moved(c); return in > 1<<20 }, "data arrives")
				}
				h.plug(false)
				cut := time.Now()
				for range 2 * cutConns {
					err := <-ended
					assert.True(t, killed(err), "%v", err)
				}
				near := time.Since(cut)
				for range 2 * cutConns {
					assert.Equal(t, "ended <nil>", strings.TrimSpace(rdmatest.Line(t, stdout)))
				}
				far := time.Since(cut)
				t.Logf("cut: noticed here after %v, on the far host after %v at most", near, far)
				assert.Less(t, max(near, far), cutDeadAfter+cutBound)
				h.plug(true)
				for _, c := range conns {
					assert.NoError(t, c.Close())
				}
			}
		})
	}
}

// TestHostsCutClose: none of the calls that end something waits for a host that cannot be reached,
// with data under way.
func TestHostsCutClose(t *testing.T) {
	for _, provider := range []string{"tcp;ofi_rxm", testenv.Native} {
		t.Run(provider, func(t *testing.T) {
			h := cabled(t)
			_, stdout := rdmatest.Start(t, h.process("cut off", provider, ""))
			_, port, err := net.SplitHostPort(rdmatest.Line(t, stdout))
			require.NoError(t, err)
			d := dialer(t, provider)
			l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: d.Transport, Providers: d.Providers})
			ended := make(chan error, 2*idleConns)
			var conns []*rdmanet.Conn
			for i := range idleConns {
				c, err := d.Dial("rdma4", net.JoinHostPort("far", port))
				require.NoError(t, err)
				if i < 2 {
					traffic(c, uint64(i), ended)
				}
				conns = append(conns, c.(*rdmanet.Conn))
			}
			rdmatest.Eventually(t, func() bool { _, in := rdmatest.Moved(conns[0]); return in > 1<<20 }, "data arrives")
			h.plug(false)
			defer h.plug(true)
			time.Sleep(notWaiting) // until nothing more goes
			soon(t, "SetDeadline", func() { require.NoError(t, conns[2].SetDeadline(time.Now())) })
			soon(t, "CloseRead", func() { require.NoError(t, conns[2].CloseRead()) })
			soon(t, "CloseWrite", func() { require.NoError(t, conns[0].CloseWrite()) })
			soon(t, "Close of all", func() {
				for _, c := range conns {
					require.NoError(t, c.Close())
				}
			})
			soon(t, "Listener.Close", func() { require.NoError(t, l.Close()) })
			soon(t, "CloseIdle", d.Transport.CloseIdle)
			soon(t, "Transport.Close", func() { require.NoError(t, d.Transport.Close()) })
		})
	}
}
