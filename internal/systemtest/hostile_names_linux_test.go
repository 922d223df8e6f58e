//go:build linux && cgo

package systemtest

import (
	"bufio"
	"context"
	"encoding/hex"
	"fmt"
	"net"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/bootstrap"
	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/internal/fabric/ofifabric"
	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// trap is something that listens on a host, and that a peer would like this process to connect to.
type trap struct {
	net.Listener
	sprung atomic.Int64
	served sync.WaitGroup
}

func newTrap(t *testing.T, addr string) *trap {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	require.NoError(t, err)
	tr := &trap{Listener: l}
	tr.served.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			tr.sprung.Add(1)
			_ = c.Close()
		}
	})
	t.Cleanup(tr.served.Wait)
	t.Cleanup(func() { assert.NoError(t, l.Close()) })
	return tr
}

func init() {
	rdmatest.Roles["liar dialing"] = func(provider, at string) error { return lies(provider, at, false) }
	rdmatest.Roles["liar listening"] = func(provider, at string) error { return lies(provider, at, true) }
}

// lies meets a peer, says to it that its endpoint is somewhere else, and prints what came of that.
// at is a name in hexadecimal digits, and whom to dial.
func lies(provider, at string, listening bool) error {
	digits, addr, _ := strings.Cut(at, ",")
	name, err := hex.DecodeString(digits)
	if err != nil {
		return err
	}
	if listening {
		err = receives(provider, name)
	} else {
		_, err = intrude(provider, addr, 0, name)
	}
	fmt.Println(err)
	return nil
}

// hostileListener is the listening side of a handshake.
type hostileListener struct{ *hostile }

func (h hostileListener) Hello() framing.Hello {
	hello := h.hostile.Hello()
	hello.Listener = 1
	return hello
}

// receives prints its address, and meets one dialer.
func receives(provider string, name []byte) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer l.Close()
	fmt.Println(l.Addr())
	infos, err := ofifabric.New().Providers(l.Addr().(*net.TCPAddr).AddrPort().Addr())
	if err != nil {
		return err
	}
	at := slices.IndexFunc(infos, func(i fabric.ProviderInfo) bool { return i.Name == provider })
	h := &hostile{provider: provider, claims: name, slots: hostileRecvs, infos: infos[at:][:1]}
	nc, err := l.Accept()
	if err != nil {
		return err
	}
	_, _, err = bootstrap.Accept(context.Background(), nc, bootstrap.Config{Timeout: rdmatest.Patience}, hostileListener{h})
	return err
}

// A peer that says that its endpoint is elsewhere is refused, and nobody connects to that place.
func TestHostileNames(t *testing.T) {
	for _, provider := range rdmatest.Providers {
		if provider == "shm" {
			continue // its names are no addresses: see TestPeersRegionIsChecked
		}
		t.Run(provider, func(t *testing.T) {
			elsewhere := newTrap(t, "127.0.0.9:0")
			name := hex.EncodeToString(rdmatest.NameOf(elsewhere.Addr()))
			tr := new(rdmanet.Transport)
			rdmatest.Cleanly(t, tr)
			const text = "its endpoint is at 127.0.0.9, and its control connection is at 127.0.0.1"
			finish := func(liar *exec.Cmd, stdout *bufio.Reader) {
				assert.Contains(t, rdmatest.Line(t, stdout), text)
				require.NoError(t, liar.Wait())
			}

			liar := rdmatest.Process(t, "liar listening", provider, name)
			_, stdout := rdmatest.Start(t, liar)
			d := rdmanet.Dialer{Transport: tr, Providers: []string{provider}, Timeout: rdmatest.Patience}
			_, err := d.Dial("rdma", rdmatest.Line(t, stdout))
			require.ErrorIs(t, err, rdmanet.ErrNoProvider)
			assert.ErrorContains(t, err, text)
			finish(liar, stdout)

			l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr, Providers: []string{provider}})
			liar = rdmatest.Process(t, "liar dialing", provider, name+","+l.Addr().String())
			_, stdout = rdmatest.Start(t, liar)
			finish(liar, stdout)
			assert.Zero(t, elsewhere.sprung.Load(), "connections to what a peer named")
		})
	}
}
