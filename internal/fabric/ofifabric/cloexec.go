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

// libfabric's sockets have no close-on-exec flag: children that the program starts would
// inherit them. They get it here, afterwards. All descriptors of the process are looked at,
// the program's own, too, so that only those are touched whose addresses prove that they
// are libfabric's: an endpoint's own one at this end, or a peer's endpoint's at the other.
// What has no address (pairs of sockets, epoll) and what connects later stays as it is.

// socket is what a socket of libfabric's is known by.
type socket struct {
	kind int // SOCK_STREAM, SOCK_DGRAM
	addr netip.AddrPort
	peer bool // the address of the other end
}

// other is what the other end of a connection to s is known by.
func (s socket) other() socket { return socket{s.kind, s.addr, true} }

// scanDelay is how long after a scan has been asked for there is one: connections take
// their time, and so there are no more than 50 a second.
const scanDelay = 20 * time.Millisecond

// inherited has the sockets of all endpoints of this process.
var inherited = struct {
	sync.Mutex
	users map[socket]int
	asked bool // a scan is to come
}{users: make(map[socket]int)}

// sockets are those of one endpoint. A nil *sockets has none.
type sockets struct {
	own   socket
	peers map[fabric.Addr]socket // guarded by inherited
}

// socketsOf is nil where a provider has no sockets that can be known.
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
	inherited.users[s.own.other()]++ // an endpoint that has met itself stays connected
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

// close forgets all: the next who has the addresses may be somebody else.
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

// dropLocked ends one use of a socket. The zero socket is none.
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

// closeOnExec sets the flag of a socket that is libfabric's. Who closes the descriptor
// while this looks at it, and opens another under its number, may have that one closed on
// exec instead.
func closeOnExec(fd int) {
	if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC != 0 {
		return // as all of Go's are
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

// addrOf is the address that an endpoint's name has, as a struct sockaddr_in or
// sockaddr_in6, without a zone.
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
