//go:build cgo

package systemtest

import (
	"io"
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/cgo/ofi"
	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// A process loads the library only once, so this is tested in another process.
func TestWithoutLibfabric(t *testing.T) {
	const variable, absent = "RDMANET_LIBFABRIC", "/nonexistent/libfabric.so.1"
	if os.Getenv(variable) != absent {
		cmd := rdmatest.Process(t, "", "", "")
		cmd.Args = append(cmd.Args, "-test.run=^TestWithoutLibfabric$")
		cmd.Env = append(cmd.Env, variable+"="+absent)
		cmd.Stdout = os.Stderr
		require.NoError(t, cmd.Run())
		return
	}
	says := variable + ": " + absent + ": cannot open"
	if ofi.CompiledVersion() == "" { // make test also compiles this without the headers
		says = "libfabric-dev"
	}
	unsupported := func(err error) {
		t.Helper()
		require.ErrorIs(t, err, rdmanet.ErrUnsupported)
		require.ErrorContains(t, err, says)
	}
	_, err := rdmanet.Listen("rdma", testenv.Address())
	unsupported(err)
	_, err = new(rdmanet.Transport).Providers(t.Context(), netip.Addr{}, nil)
	unsupported(err)

	l := rdmatest.Listen(t, rdmanet.ListenConfig{AcceptTCP: true})
	_, err = rdmanet.Dial("rdma", l.Addr().String())
	unsupported(err)
	d := rdmanet.Dialer{Fallback: rdmanet.FallbackTCP}
	for _, dial := range []func(network, address string) (net.Conn, error){d.Dial, net.Dial} {
		c, err := dial("tcp", l.Addr().String())
		require.NoError(t, err)
		defer c.Close()
		if c, ok := c.(*rdmanet.Conn); ok {
			unsupported(c.Info().Fallback)
		}
		_, err = io.WriteString(c, "first") // as a client does that speaks first
		require.NoError(t, err)
		rdmatest.Echo(t, c, acceptAfter(t, l, "first"))
	}
}

// acceptAfter accepts conns up to the one whose client sends the text in first. Those before
// it are from handshakes that came to nothing, and end at once.
func acceptAfter(t *testing.T, l *rdmanet.Listener, first string) *rdmanet.Conn {
	t.Helper()
	for {
		s := rdmatest.Accept(t, l)
		t.Cleanup(func() { s.Close() })
		buf := make([]byte, len(first))
		if _, err := io.ReadFull(s, buf); err == nil {
			require.Equal(t, first, string(buf))
			return s
		}
	}
}
