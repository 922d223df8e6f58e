//go:build linux && cgo

package ofifabric

import (
	"encoding/binary"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
)

// libfabric opens its sockets without the close-on-exec flag, so children that the program starts
// would inherit them. The flag is set here, afterwards. All descriptors of the process are looked
// at, the program's own included, so only those are changed whose addresses prove that they are
// libfabric's: the local address is that of one of our endpoints, or the remote address is that of
// a peer's endpoint. Descriptors without an address (socket pairs, epoll) and connections that come
// later stay as they are.

// socket identifies a socket of libfabric's.
type socket struct {
	kind int // SOCK_STREAM, SOCK_DGRAM
	addr netip.AddrPort
	peer bool // addr is that of the other end
}

// other identifies the other end of a connection to s.
func (s socket) other() socket { return socket{s.kind, s.addr, true} }

// scanDelay is the time from the request for a scan to the scan. Connections take a while to come
// up, and the delay limits scans to 50 a second.
const scanDelay = 20 * time.Millisecond

// inherited holds the sockets of all endpoints of this process.
var inherited = struct {
	sync.Mutex
	users map[socket]int
	asked bool // a scan is scheduled
}{users: make(map[socket]int)}

// sockets holds those of one endpoint. A nil *sockets holds none.
type sockets struct {
	own   socket
	peers map[fabric.Addr]socket // guarded by inherited
}

// socketsOf returns nil if the provider has no sockets that can be identified.
func socketsOf(provider string, name []byte) *sockets {
	kind := 0
	switch {
	case has(provider, tcpSockets):
		kind = unix.SOCK_STREAM
	case has(provider, udpSockets):
		kind = unix.SOCK_DGRAM
	}
	addr, ok := addrOf(name)
	if kind == 0 || !ok {
		return nil
	}
	s := &sockets{own: socket{kind: kind, addr: addr}, peers: make(map[fabric.Addr]socket)}
	inherited.Lock()
	defer inherited.Unlock()
	inherited.users[s.own]++
	inherited.users[s.own.other()]++ // an endpoint that has connected to itself stays connected
	askLocked()
	return s
}

// insert adds a peer, to which there will be a connection.
func (s *sockets) insert(a fabric.Addr, name []byte) {
	if s == nil {
		return
	}
	addr, ok := addrOf(name)
	if !ok {
		return
	}
	inherited.Lock()
	defer inherited.Unlock()
	dropLocked(s.peers[a])
	s.peers[a] = socket{s.own.kind, addr, true}
	inherited.users[s.peers[a]]++
	askLocked()
}

func (s *sockets) remove(a fabric.Addr) {
	if s == nil {
		return
	}
	inherited.Lock()
	defer inherited.Unlock()
	dropLocked(s.peers[a])
	delete(s.peers, a)
}

// close forgets all sockets: their addresses may belong to somebody else next.
func (s *sockets) close() {
	if s == nil {
		return
	}
	inherited.Lock()
	defer inherited.Unlock()
	dropLocked(s.own)
	dropLocked(s.own.other())
	for _, p := range s.peers {
		dropLocked(p)
	}
	clear(s.peers)
	s.own = socket{}
}

// connected asks for another scan.
func (s *sockets) connected() {
	if s == nil {
		return
	}
	inherited.Lock()
	defer inherited.Unlock()
	askLocked()
}

// dropLocked ends one use of a socket. The zero socket stands for none.
func dropLocked(s socket) {
	if inherited.users[s]--; inherited.users[s] <= 0 {
		delete(inherited.users, s)
	}
}

func askLocked() {
	if !inherited.asked {
		inherited.asked = true
		time.AfterFunc(scanDelay, scan)
	}
}

// scan looks at all descriptors of the process.
func scan() {
	inherited.Lock()
	inherited.asked = false
	inherited.Unlock()
	dir, err := os.Open("/proc/self/fd")
	if err != nil {
		return
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	for _, name := range names {
		if fd, err := strconv.Atoi(name); err == nil {
			closeOnExec(fd)
		}
	}
}

// closeOnExec sets the flag if the descriptor is a socket of libfabric's. If somebody closes the
// descriptor meanwhile and opens another under the same number, that one may get the flag instead.
func closeOnExec(fd int) {
	if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC != 0 {
		return // set already, as on all of Go's descriptors
	}
	kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil {
		return
	}
	if isOurs(kind, false, fd, unix.Getsockname) || isOurs(kind, true, fd, unix.Getpeername) {
		unix.CloseOnExec(fd)
	}
}

func isOurs(kind int, peer bool, fd int, addrOf func(int) (unix.Sockaddr, error)) bool {
	sa, err := addrOf(fd)
	if err != nil {
		return false
	}
	s := socket{kind: kind, peer: peer}
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		s.addr = netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		s.addr = netip.AddrPortFrom(netip.AddrFrom16(sa.Addr).Unmap(), uint16(sa.Port))
	default:
		return false
	}
	inherited.Lock()
	defer inherited.Unlock()
	return inherited.users[s] > 0
}

// addrOf returns the address in an endpoint's name, which is a struct sockaddr_in or sockaddr_in6.
// The address has no zone.
func addrOf(name []byte) (addr netip.AddrPort, ok bool) {
	if len(name) < 16 {
		return addr, false
	}
	family, port := binary.NativeEndian.Uint16(name), binary.BigEndian.Uint16(name[2:])
	switch {
	case family == unix.AF_INET:
		addr = netip.AddrPortFrom(netip.AddrFrom4([4]byte(name[4:8])), port)
	case family == unix.AF_INET6 && len(name) >= unix.SizeofSockaddrInet6:
		addr = netip.AddrPortFrom(netip.AddrFrom16([16]byte(name[8:24])).Unmap(), port)
	}
	return addr, addr.IsValid() && port != 0
}
