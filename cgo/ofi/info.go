//go:build linux && cgo

package ofi

/*
#include <stdlib.h>
#include <netinet/in.h>
#include "shim.h"
*/
import "C"

import (
	"encoding/binary"
	"fmt"
	"iter"
	"math"
	"net/netip"
	"strconv"
	"strings"
	"unsafe"
)

// Order is a set of message orders, the FI_ORDER bits of fi_endpoint(3).
type Order uint64

// The message orders that matter between sends and writes.
const (
	OrderSendAfterSend   Order = C.OFI_FI_ORDER_SAS
	OrderSendAfterWrite  Order = C.OFI_FI_ORDER_SAW
	OrderWriteAfterWrite Order = C.OFI_FI_ORDER_WAW
)

// mrModes are the demands on registered memory that this package meets.
const mrModes = C.OFI_FI_MR_LOCAL | C.OFI_FI_MR_VIRT_ADDR | C.OFI_FI_MR_ALLOCATED |
	C.OFI_FI_MR_PROV_KEY | C.OFI_FI_MR_ENDPOINT

// Hints say what GetInfo looks for, besides reliable datagram endpoints that send, receive and
// write.
type Hints struct {
	Provider         string // libfabric's name; "" for all
	Fabric           string // one of the provider's fabrics; "" for any
	Source           string // local address to bind to; "" for any
	CQDataSize       int    // bytes of remote completion data, at least
	Order            Order
	DeliveryComplete bool // FI_DELIVERY_COMPLETE must be supported
	TxSize, RxSize   int  // the queues' depths, 0 for the provider's own choice
}

// InfoList is what fi_getinfo returned. It must be freed, and after that no Info of it may be used.
type InfoList struct{ head *C.struct_fi_info }

// Info describes one endpoint that can be opened, struct fi_info.
type Info struct {
	c    *C.struct_fi_info
	attr *C.struct_ofi_info // what c says
}

func newInfo(c *C.struct_fi_info) Info {
	i := Info{c, new(C.struct_ofi_info)}
	C.ofi_describe(c, i.attr)
	return i
}

// Getenv returns a variable as C libraries find it, and whether it is set (getenv(3)).
func Getenv(name string) (value string, set bool) {
	cname := C.CString(name)
	defer C.free(unsafe.Pointer(cname))
	c := C.getenv(cname)
	return C.GoString(c), c != nil
}

// GetInfo asks for what fits the hints (fi_getinfo). It may block: providers resolve addresses and
// probe devices. Errors wrap Errno, except for a *LoadError; syscall.ENODATA means that there is
// nothing.
func GetInfo(h Hints) (*InfoList, error) {
	lib, err := load()
	if err != nil {
		return nil, err
	}
	hints := newHints(h)
	if hints == nil {
		return nil, callError("fi_allocinfo", -C.ENOMEM)
	}
	defer C.ofi_freeinfo(hints)
	source, free := cString(h.Source)
	defer free()
	restore := holdSignals()
	defer restore()
	list := new(InfoList)
	if ret := C.ofi_getinfo(lib.api(), source, hints, &list.head); ret != 0 {
		return nil, callError("fi_getinfo", ret)
	}
	return list, nil
}

func newHints(h Hints) *C.struct_fi_info {
	c := C.struct_ofi_hints{
		mr_mode:      mrModes,
		order:        C.uint64_t(h.Order),
		cq_data_size: C.size_t(h.CQDataSize),
	}
	c.tx_size, c.rx_size = C.size_t(max(h.TxSize, 0)), C.size_t(max(h.RxSize, 0))
	if h.DeliveryComplete {
		c.op_flags = C.OFI_FI_DELIVERY_COMPLETE
	}
	var freeProvider, freeFabric func()
	c.provider, freeProvider = cString(h.Provider)
	defer freeProvider()
	c.fabric, freeFabric = cString(h.Fabric)
	defer freeFabric()
	return C.ofi_hints(&c)
}

// cString returns a copy of s for C, nil for "", and a function that frees it.
func cString(s string) (c *C.char, free func()) {
	if s == "" {
		return nil, func() {}
	}
	c = C.CString(s)
	return c, func() { C.free(unsafe.Pointer(c)) }
}

// Free releases the list (fi_freeinfo).
func (l *InfoList) Free() {
	C.ofi_freeinfo(l.head)
	l.head = nil
}

// All yields the entries, the one that libfabric prefers first.
func (l *InfoList) All() iter.Seq[Info] {
	return func(yield func(Info) bool) {
		for c := l.head; c != nil; c = C.ofi_nextinfo(c) {
			if !yield(newInfo(c)) {
				return
			}
		}
	}
}

// Provider returns the provider's name. Layers follow a semicolon, as in "tcp;ofi_rxm".
func (i Info) Provider() string { return C.GoString(i.attr.provider) }

// Fabric returns the name of the fabric.
func (i Info) Fabric() string { return C.GoString(i.attr.fabric) }

// Domain returns the name of the domain, in general that of a device.
func (i Info) Domain() string { return C.GoString(i.attr.domain) }

// Protocol returns the wire protocol and its version, FI_PROTO of fi_endpoint(3).
func (i Info) Protocol() (protocol, version uint32) {
	return uint32(i.attr.protocol), uint32(i.attr.protocol_version)
}

// InjectSize returns the length of the longest inject operation in bytes.
func (i Info) InjectSize() int { return toInt(i.attr.inject_size) }

// MaxMsgSize returns the length of the longest send or the longest write in bytes, whichever is
// longer: see Endpoint.MaxSend.
func (i Info) MaxMsgSize() uint64 { return uint64(i.attr.max_msg_size) }

// CQDataSize returns the number of bytes of remote completion data.
func (i Info) CQDataSize() int { return toInt(i.attr.cq_data_size) }

// Order returns the set of orders that sent messages keep.
func (i Info) Order() Order { return Order(i.attr.order) }

// TxSize returns the provider's own depth of the transmit queue, in operations.
func (i Info) TxSize() int { return toInt(i.attr.tx_size) }

// RxSize returns the number of receives that the provider holds.
func (i Info) RxSize() int { return toInt(i.attr.rx_size) }

// toInt cuts a size to what an int holds: some providers say SIZE_MAX for "no limit".
func toInt(size C.size_t) int { return int(min(uint64(size), math.MaxInt)) }

// LocalMR reports whether local buffers must be registered (FI_MR_LOCAL).
func (i Info) LocalMR() bool { return i.mrMode(C.OFI_FI_MR_LOCAL) }

// EndpointMR reports whether regions are bound to the endpoint (FI_MR_ENDPOINT).
func (i Info) EndpointMR() bool { return i.mrMode(C.OFI_FI_MR_ENDPOINT) }

// mrNames lists the bits of struct fi_domain_attr's mr_mode that still mean something, fi_mr(3).
var mrNames = []struct {
	bit  C.int
	name string
}{
	{C.OFI_FI_MR_LOCAL, "LOCAL"}, {C.OFI_FI_MR_RAW, "RAW"}, {C.OFI_FI_MR_VIRT_ADDR, "VIRT_ADDR"}, {C.OFI_FI_MR_ALLOCATED, "ALLOCATED"},
	{C.OFI_FI_MR_PROV_KEY, "PROV_KEY"}, {C.OFI_FI_MR_MMU_NOTIFY, "MMU_NOTIFY"}, {C.OFI_FI_MR_RMA_EVENT, "RMA_EVENT"},
	{C.OFI_FI_MR_ENDPOINT, "ENDPOINT"}, {C.OFI_FI_MR_HMEM, "HMEM"}, {C.OFI_FI_MR_COLLECTIVE, "COLLECTIVE"},
}

// MRMode names the demands on registered memory, without "FI_MR_".
func (i Info) MRMode() string {
	var names []string
	for _, n := range mrNames {
		if i.mrMode(n.bit) {
			names = append(names, n.name)
		}
	}
	return strings.Join(names, " ")
}

func (i Info) mrMode(bit C.int) bool { return i.attr.mr_mode&bit != 0 }

// HasIP reports whether endpoints are addressed by IP address and port.
func (i Info) HasIP() bool {
	switch i.attr.addr_format {
	case C.OFI_FI_SOCKADDR, C.OFI_FI_SOCKADDR_IN, C.OFI_FI_SOCKADDR_IN6:
		return true
	}
	return false
}

// HasInfiniBand reports whether endpoints are addressed by GID and partition
// (FI_SOCKADDR_IB).
func (i Info) HasInfiniBand() bool { return i.attr.addr_format == C.OFI_FI_SOCKADDR_IB }

// Source returns the IP address that an endpoint would be bound to, the zero Addr if the provider
// does not say or does not use IP. The zone of a link-local one is the interface's number.
func (i Info) Source() netip.Addr {
	if !i.HasIP() || i.attr.src_addr == nil {
		return netip.Addr{}
	}
	return sockaddrIP(unsafe.Slice((*byte)(i.attr.src_addr), int(i.attr.src_addrlen)))
}

// NIC is what the provider tells about the device. What it does not tell is empty.
type NIC struct {
	PCI  string // address on the bus, as in sysfs: "0000:3b:00.0"
	Link string // address on the link, in the provider's own form
}

// NIC returns attributes of the device, struct fid_nic of fi_nic(3).
func (i Info) NIC() (n NIC) {
	if a := i.attr; a.has_pci != 0 {
		n.PCI = fmt.Sprintf("%04x:%02x:%02x.%d", a.pci_domain, a.pci_bus, a.pci_device, a.pci_function)
	}
	n.Link = C.GoString(i.attr.link)
	return n
}

// sockaddrIP reads the address out of a sockaddr_in or sockaddr_in6.
func sockaddrIP(sa []byte) netip.Addr {
	const (
		sizeofIn  = C.sizeof_struct_sockaddr_in
		sizeofIn6 = C.sizeof_struct_sockaddr_in6
	)
	if len(sa) < sizeofIn {
		return netip.Addr{}
	}
	switch (*C.struct_sockaddr)(unsafe.Pointer(&sa[0])).sa_family {
	case C.AF_INET:
		return netip.AddrFrom4([4]byte(sa[4:8]))
	case C.AF_INET6:
		if len(sa) < sizeofIn6 {
			break
		}
		ip := netip.AddrFrom16([16]byte(sa[8:24]))
		if scope := binary.NativeEndian.Uint32(sa[scopeAt:]); scope != 0 && isLinkLocal(ip) {
			return ip.WithZone(strconv.FormatUint(uint64(scope), 10))
		}
		return ip
	}
	return netip.Addr{}
}

// scopeAt is where a sockaddr_in6 has its sin6_scope_id.
const scopeAt = 24

// isLinkLocal reports whether an address identifies a host only together with a scope.
func isLinkLocal(ip netip.Addr) bool { return ip.Is6() && ip.IsLinkLocalUnicast() }

// String names the provider, fabric and domain.
func (i Info) String() string {
	return strings.Join([]string{i.Provider(), i.Fabric(), i.Domain()}, " ")
}
