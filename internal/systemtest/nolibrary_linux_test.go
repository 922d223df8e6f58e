//go:build cgo

package systemtest

import (
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/cgo/ofi"
	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// whyNoLibrary is how the process knows that it is to do without libfabric, and what errors have to say about that.
const whyNoLibrary = "RDMANET_TEST_WITHOUT"

// A process loads the library only once, so this is tested in other processes.
func TestWithoutLibfabric(t *testing.T) {
	if says := os.Getenv(whyNoLibrary); says != "" {
		doesWithout(t, says)
		return
	}
	const variable, absent = "RDMANET_LIBFABRIC", "/nonexistent/libfabric.so.1"
	exe, err := os.Executable()
	require.NoError(t, err)
	t.Run("not there", func(t *testing.T) {
		doWithout(t, exe, variable+": "+absent+": cannot open", variable+"="+absent)
	})
	t.Run("static program", func(t *testing.T) {
		for name, static := range map[string][]string{
			"static":     {"-static"},
			"static-pie": {"-static-pie", "-buildmode=pie"},
		} {
			t.Run(name, func(t *testing.T) {
				program := filepath.Join(t.TempDir(), name)
				args := append([]string{"test", "-c", "-o", program, "-ldflags", "-linkmode external -extldflags " + static[0]}, static[1:]...)
				out, err := exec.Command("go", args...).CombinedOutput()
				require.NoError(t, err, "%s", out)
				doWithout(t, program, "linked statically")
			})
		}
	})
}

// doWithout runs doesWithout in a program without libfabric, with more in its environment.
func doWithout(t *testing.T, program, says string, env ...string) {
	t.Helper()
	if ofi.CompiledVersion() == "" { // make test also compiles this without the headers
		says = "libfabric-dev"
	}
	cmd := exec.Command(program, "-test.run=^TestWithoutLibfabric$", "-test.v")
	cmd.Env = append(append(os.Environ(), whyNoLibrary+"="+says), env...)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "--- PASS: TestWithoutLibfabric ")
}

// doesWithout tests what is left of the package.
func doesWithout(t *testing.T, says string) {
	t.Helper()
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
		if info, ok := rdmanet.InfoOf(c.RemoteAddr()); ok {
			unsupported(info.Fallback)
		}
		_, err = io.WriteString(c, "first") // as a client does that speaks first
		require.NoError(t, err)
		rdmatest.Echo(t, c, acceptAfter(t, l, "first"))
	}
}

// acceptAfter accepts conns up to the one whose client sends the text in first. Those before
// it are from handshakes that came to nothing, and end at once.
func acceptAfter(t *testing.T, l *rdmanet.Listener, first string) net.Conn {
	t.Helper()
	for {
		s := rdmatest.AcceptPlain(t, l)
		t.Cleanup(func() { s.Close() })
		buf := make([]byte, len(first))
		if _, err := io.ReadFull(s, buf); err == nil {
			require.Equal(t, first, string(buf))
			return s
		}
	}
}
