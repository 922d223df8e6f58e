package rdmatest

import (
	"encoding/binary"
	"net"

	"golang.org/x/sys/unix"
)

// NameOf returns the name of an endpoint at an IPv4 address, which is a struct sockaddr_in, for providers
// that have such names.
func NameOf(addr net.Addr) []byte {
	at := addr.(*net.TCPAddr).AddrPort()
	name := binary.NativeEndian.AppendUint16(nil, unix.AF_INET)
	name = binary.BigEndian.AppendUint16(name, at.Port())
	name = append(name, at.Addr().Unmap().AsSlice()...)
	return append(name, make([]byte, unix.SizeofSockaddrInet4-len(name))...)
}
