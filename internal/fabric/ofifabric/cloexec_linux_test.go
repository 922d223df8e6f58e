//go:build cgo

package ofifabric

import (
	"errors"
	"net/netip"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/internal/testenv"
)

// inheritable lists the descriptors of Internet sockets that children would inherit.
func inheritable(t *testing.T) (fds []int) {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	for _, e := range list {
		fd, err := strconv.Atoi(e.Name())
		require.NoError(t, err)
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err != nil || flags&unix.FD_CLOEXEC != 0 {
			continue
		}
		if domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN); err == nil && domain != unix.AF_UNIX {
			fds = append(fds, fd)
		}
	}
	return fds
}

// settles waits until children would inherit exactly those sockets, then scans again and checks
// that it stays so.
func settles(t *testing.T, those []int) {
	t.Helper()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		inherited.Lock()
		defer inherited.Unlock()
		assert.False(c, inherited.asked, "a scan is to come")
		assert.ElementsMatch(c, those, inheritable(t))
	}, 5*time.Second, time.Millisecond)
	scan()
	require.ElementsMatch(t, those, inheritable(t))
}

// hold puts scans off, or makes up for those that were put off.
func hold(off bool) {
	inherited.Lock()
	defer inherited.Unlock()
	if inherited.asked = off; !off {
		askLocked()
	}
}

// bind makes and binds an inheritable socket, like one of a C library.
func bind(t *testing.T, kind int, at netip.AddrPort) (fd int, err error) {
	t.Helper()
	fd, err = unix.Socket(unix.AF_INET, kind, 0) // without SOCK_CLOEXEC
	require.NoError(t, err)
	if err := unix.Bind(fd, &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}); err != nil {
		return -1, errors.Join(err, unix.Close(fd))
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd, nil
}

// bound returns a socket that is bound to a free port.
func bound(t *testing.T, kind int, at netip.AddrPort) (fd int, addr netip.AddrPort) {
	t.Helper()
	fd, err := bind(t, kind, at)
	require.NoError(t, err)
	sa, err := unix.Getsockname(fd)
	require.NoError(t, err)
	in := sa.(*unix.SockaddrInet4)
	return fd, netip.AddrPortFrom(netip.AddrFrom4(in.Addr), uint16(in.Port))
}

// The sockets of an endpoint and of its connections are closed on exec, and no others.
func TestCloseOnExec(t *testing.T) {
	home := netip.MustParseAddr("127.0.0.1")
	for _, provider := range []string{"tcp;ofi_rxm", testenv.Native, "udp;ofi_rxd"} {
		t.Run(provider, func(t *testing.T) {
			require.Empty(t, inheritable(t))
			// The program's own sockets. One has the port of an endpoint, but is of the other kind
			// (stream, datagram).
			other := unix.SOCK_DGRAM
			if provider == "udp;ofi_rxd" {
				other = unix.SOCK_STREAM
			}
			twin := -1
			var eps [2]fabric.Endpoint
			for tries := 0; twin < 0; tries++ { // another process may have the port of that kind
				require.Less(t, tries, 50)
				settles(t, nil)
				hold(true)
				for i := range eps {
					ep, err := New().Open(provider, home)
					require.NoError(t, err)
					defer func() { require.NoError(t, ep.Close()) }()
					eps[i] = ep
				}
				require.NotEmpty(t, inheritable(t), "the test is of no use if libfabric sets the flag itself")
				hold(false)
				at, ok := addrOf(eps[0].Name())
				require.True(t, ok)
				var err error
				if twin, err = bind(t, other, at); err != nil {
					require.ErrorIs(t, err, unix.EADDRINUSE)
				}
			}
			stranger, addr := bound(t, unix.SOCK_STREAM, netip.AddrPortFrom(home, 0))
			require.NoError(t, unix.Listen(stranger, 8))
			client, _ := bound(t, unix.SOCK_STREAM, netip.AddrPortFrom(home, 0))
			require.NoError(t, unix.Connect(client, &unix.SockaddrInet4{Port: int(addr.Port()), Addr: addr.Addr().As4()}))
			idle, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
			require.NoError(t, err)
			defer unix.Close(idle)
			own := []int{twin, stranger, client, idle}

			settles(t, own)
			to := introduce(t, eps)
			settles(t, own)
			talk(t, eps, to) // connects them
			eps[0].(*endpoint).Connected()
			settles(t, own)
		})
	}
}

// introduce inserts the addresses of two endpoints into each other's address vectors.
func introduce(t *testing.T, eps [2]fabric.Endpoint) (to [2]fabric.Addr) {
	t.Helper()
	for i, ep := range eps {
		var err error
		to[i], err = ep.Insert(eps[1-i].Name())
		require.NoError(t, err)
	}
	return to
}

// talk sends a message in each direction.
func talk(t *testing.T, eps [2]fabric.Endpoint, to [2]fabric.Addr) {
	t.Helper()
	var done [8]fabric.Completion
	mem, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Munmap(mem) }) // after the endpoints are closed
	for i, ep := range eps {
		ops := []fabric.Op{{Kind: fabric.Inject, To: to[i], Buf: mem[:5]}}
		recv := []fabric.Op{{Kind: fabric.Recv, Buf: mem[64*(1+i):][:64]}}
		got := false
		require.Eventually(t, func() bool {
			n, _, err := eps[1-i].Exchange(recv, nil)
			require.NoError(t, err)
			recv = recv[n:]
			if n, _, err = ep.Exchange(ops, done[:]); n > 0 {
				ops = nil
			}
			require.NoError(t, err)
			_, n, err = eps[1-i].Exchange(nil, done[:])
			require.NoError(t, err)
			for _, c := range done[:n] {
				got = got || c.Kind == fabric.Recv
			}
			return got
		}, 5*time.Second, 100*time.Microsecond)
	}
}

// The addresses of an endpoint or a peer are forgotten when it goes: the next socket with such an
// address may be the program's own.
func TestSocketsAreForgotten(t *testing.T) {
	home := netip.MustParseAddr("127.0.0.1")
	users := func() (n int) {
		inherited.Lock()
		defer inherited.Unlock()
		for _, uses := range inherited.users {
			n += uses
		}
		return n
	}
	require.Zero(t, users())
	a, err := New().Open(testenv.Native, home)
	require.NoError(t, err)
	b, err := New().Open(testenv.Native, home)
	require.NoError(t, err)
	require.Equal(t, 4, users()) // each counts its own address twice: as the near and as the far end of a connection
	to, err := a.Insert(b.Name())
	require.NoError(t, err)
	require.Equal(t, 5, users())
	require.NoError(t, a.Remove(to))
	require.Equal(t, 4, users())
	_, err = a.Insert(b.Name())
	require.NoError(t, err)
	require.NoError(t, a.Close())
	require.Equal(t, 2, users())
	require.NoError(t, b.(interface{ Shutdown() error }).Shutdown())
	require.Zero(t, users())
	require.NoError(t, b.Close())
	require.Zero(t, users())
	shm, err := New().Open("shm", home)
	require.NoError(t, err)
	require.Zero(t, users())
	require.NoError(t, shm.Close())
}

func TestAddressesInNames(t *testing.T) {
	v4 := []byte{unix.AF_INET, 0, 0x12, 0x34, 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0}
	v6 := make([]byte, 28)
	v6[0], v6[3], v6[23] = unix.AF_INET6, 80, 1
	for _, c := range []struct {
		name []byte
		want string
	}{
		{v4, "127.0.0.1:4660"}, {v6, "[::1]:80"}, {v4[:15], ""}, {v6[:27], ""}, {nil, ""},
		{make([]byte, 28), ""}, {[]byte("fi_shm://1-2-3:0:0"), ""},
	} {
		addr, ok := addrOf(c.name)
		assert.Equal(t, c.want != "", ok, c.name)
		if ok {
			assert.Equal(t, c.want, addr.String())
		}
	}
}
