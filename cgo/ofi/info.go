//go:build linux && cgo

package ofi

/*
#cgo pkg-config: libfabric
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"fmt"
	"iter"
	"math"
	"net/netip"
	"strings"
	"unsafe"
)

// Order is a set of message orders, the FI_ORDER bits of fi_endpoint(3).
type Order uint64

// The message orders that matter between sends and writes.
const (
	OrderSendAfterSend   Order = C.FI_ORDER_SAS
	OrderSendAfterWrite  Order = C.FI_ORDER_SAW
	OrderWriteAfterWrite Order = C.FI_ORDER_WAW
)

// mrModes are the demands on registered memory that this package meets.
const mrModes = C.FI_MR_LOCAL | C.FI_MR_VIRT_ADDR | C.FI_MR_ALLOCATED |
	C.FI_MR_PROV_KEY | C.FI_MR_ENDPOINT

// Hints say what GetInfo looks for: reliable datagram endpoints that send,
// receive and write, and besides that the following.
type Hints struct {
	Provider         string // libfabric's name; "" for all
	Fabric           string // one of the provider's fabrics; "" for any
	Source           string // local address to bind to; "" for any
	CQDataSize       int    // bytes of remote completion data, at least
	Order            Order
	DeliveryComplete bool // FI_DELIVERY_COMPLETE must be supported
	MultiRecv        bool // RecvMulti must be supported
	TxSize, RxSize   int  // the queues' depths, 0 for the provider's own choice
}

// InfoList is what fi_getinfo returned. It must be freed, and no Info of it
// used after that.
type InfoList struct{ head *C.struct_fi_info }

// Info describes one endpoint that can be opened, struct fi_info.
type Info struct{ c *C.struct_fi_info }

// version is the interface version to ask for: the library refuses one newer
// than itself, and a newer one than this package was compiled with could
// change the layout of its structures.
func version() (C.uint32_t, error) {
	compiled := C.uint32_t(C.FI_MAJOR_VERSION<<16 | C.FI_MINOR_VERSION)
	v := min(compiled, C.fi_version())
	if v < 1<<16|17 {
		return 0, fmt.Errorf("libfabric %s is too old: 1.17 is needed", LibraryVersion())
	}
	return v, nil
}

// CompiledVersion is the major and minor version of the headers that this package
// was compiled with.
func CompiledVersion() string {
	return fmt.Sprintf("%d.%d", C.FI_MAJOR_VERSION, C.FI_MINOR_VERSION)
}

// LibraryVersion is the major and minor version of the library in use, as in
// "1.17" (fi_version).
func LibraryVersion() string {
	v := C.fi_version()
	return fmt.Sprintf("%d.%d", v>>16, v&0xffff)
}

// Setenv sets a variable for libfabric, unless it is set (setenv(3)). libfabric reads
// its environment once, at the first GetInfo.
func Setenv(name, value string) {
	cname, cvalue := C.CString(name), C.CString(value)
	defer C.free(unsafe.Pointer(cname))
	defer C.free(unsafe.Pointer(cvalue))
	C.setenv(cname, cvalue, 0)
}

// Getenv is what libraries find a variable set to, and whether it is set (getenv(3)).
func Getenv(name string) (value string, set bool) {
	cname := C.CString(name)
	defer C.free(unsafe.Pointer(cname))
	c := C.getenv(cname)
	return C.GoString(c), c != nil
}

// GetInfo asks what fits the hints (fi_getinfo). It may block: providers
// resolve addresses and probe devices. It wraps Errno; syscall.ENODATA means
// that there is nothing.
func GetInfo(h Hints) (*InfoList, error) {
	v, err := version()
	if err != nil {
		return nil, err
	}
	hints := newHints(h)
	if hints == nil {
		return nil, callError("fi_allocinfo", -C.FI_ENOMEM)
	}
	defer C.fi_freeinfo(hints)
	var node *C.char
	var flags C.uint64_t
	if h.Source != "" {
		node, flags = C.CString(h.Source), C.FI_SOURCE
		defer C.free(unsafe.Pointer(node))
	}
	restore := holdSignals()
	defer restore()
	list := new(InfoList)
	if ret := C.fi_getinfo(v, node, nil, flags, hints, &list.head); ret != 0 {
		return nil, callError("fi_getinfo", ret)
	}
	return list, nil
}

func newHints(h Hints) *C.struct_fi_info {
	c := C.fi_allocinfo()
	if c == nil {
		return nil
	}
	c.caps = C.FI_MSG | C.FI_RMA
	if h.MultiRecv {
		c.caps |= C.FI_MULTI_RECV
	}
	c.mode = C.FI_CONTEXT | C.FI_CONTEXT2
	c.ep_attr._type = C.FI_EP_RDM
	c.domain_attr.threading = C.FI_THREAD_SAFE
	c.domain_attr.av_type = C.FI_AV_TABLE
	c.domain_attr.mr_mode = mrModes
	c.domain_attr.cq_data_size = C.size_t(h.CQDataSize)
	c.tx_attr.msg_order = C.uint64_t(h.Order)
	c.rx_attr.msg_order = C.uint64_t(h.Order)
	c.tx_attr.size = C.size_t(max(h.TxSize, 0))
	c.rx_attr.size = C.size_t(max(h.RxSize, 0))
	if h.DeliveryComplete {
		c.tx_attr.op_flags = C.FI_DELIVERY_COMPLETE
	}
	if h.Fabric != "" {
		c.fabric_attr.name = C.CString(h.Fabric) // freed by fi_freeinfo, as is the other
	}
	if h.Provider != "" {
		c.fabric_attr.prov_name = C.CString(h.Provider)
	}
	return c
}

// Free releases the list (fi_freeinfo).
func (l *InfoList) Free() {
	C.fi_freeinfo(l.head)
	l.head = nil
}

// All yields the entries, the one that libfabric prefers first.
func (l *InfoList) All() iter.Seq[Info] {
	return func(yield func(Info) bool) {
		for c := l.head; c != nil; c = c.next {
			if !yield(Info{c}) {
				return
			}
		}
	}
}

// Provider is the provider's name, layered ones with a semicolon as in
// "tcp;ofi_rxm".
func (i Info) Provider() string { return C.GoString(i.c.fabric_attr.prov_name) }

// Fabric is the name of the fabric.
func (i Info) Fabric() string { return C.GoString(i.c.fabric_attr.name) }

// Domain is the name of the domain, in general that of a device.
func (i Info) Domain() string { return C.GoString(i.c.domain_attr.name) }

// Protocol is the wire protocol and its version, FI_PROTO of fi_endpoint(3).
func (i Info) Protocol() (protocol, version uint32) {
	return uint32(i.c.ep_attr.protocol), uint32(i.c.ep_attr.protocol_version)
}

// InjectSize is the length of the longest inject operation in bytes.
func (i Info) InjectSize() int { return toInt(i.c.tx_attr.inject_size) }

// MaxMsgSize is the length of the longest send or write in bytes, whichever may be
// longer: see Endpoint.MaxSend.
func (i Info) MaxMsgSize() uint64 { return uint64(i.c.ep_attr.max_msg_size) }

// CQDataSize is the number of bytes of remote completion data.
func (i Info) CQDataSize() int { return toInt(i.c.domain_attr.cq_data_size) }

// Order is the set of message orders kept by what is sent.
func (i Info) Order() Order { return Order(i.c.tx_attr.msg_order) }

// TxSize and RxSize are the provider's own depths, in operations.
func (i Info) TxSize() int { return toInt(i.c.tx_attr.size) }

// RxSize is the number of receives that the provider holds.
func (i Info) RxSize() int { return toInt(i.c.rx_attr.size) }

// toInt cuts a size to what an int holds: some providers say SIZE_MAX for "no limit".
func toInt(size C.size_t) int { return int(min(uint64(size), math.MaxInt)) }

// LocalMR reports whether local buffers must be registered (FI_MR_LOCAL).
func (i Info) LocalMR() bool { return i.mrMode(C.FI_MR_LOCAL) }

// EndpointMR reports whether regions are bound to the endpoint (FI_MR_ENDPOINT).
func (i Info) EndpointMR() bool { return i.mrMode(C.FI_MR_ENDPOINT) }

// MultiRecv reports whether multi-receive buffers are offered.
func (i Info) MultiRecv() bool { return i.c.caps&C.FI_MULTI_RECV != 0 }

// mrNames has the bits of struct fi_domain_attr's mr_mode that mean something
// still, fi_mr(3).
var mrNames = []struct {
	bit  C.int
	name string
}{
	{C.FI_MR_LOCAL, "LOCAL"}, {C.FI_MR_RAW, "RAW"}, {C.FI_MR_VIRT_ADDR, "VIRT_ADDR"}, {C.FI_MR_ALLOCATED, "ALLOCATED"},
	{C.FI_MR_PROV_KEY, "PROV_KEY"}, {C.FI_MR_MMU_NOTIFY, "MMU_NOTIFY"}, {C.FI_MR_RMA_EVENT, "RMA_EVENT"},
	{C.FI_MR_ENDPOINT, "ENDPOINT"}, {C.FI_MR_HMEM, "HMEM"}, {C.FI_MR_COLLECTIVE, "COLLECTIVE"},
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

func (i Info) mrMode(bit C.int) bool { return i.c.domain_attr.mr_mode&bit != 0 }

// HasIP reports whether endpoints are addressed by IP address and port.
func (i Info) HasIP() bool {
	switch i.c.addr_format {
	case C.FI_SOCKADDR, C.FI_SOCKADDR_IN, C.FI_SOCKADDR_IN6:
		return true
	}
	return false
}

// HasInfiniBand reports whether endpoints are addressed by GID and partition
// (FI_SOCKADDR_IB).
func (i Info) HasInfiniBand() bool { return i.c.addr_format == C.FI_SOCKADDR_IB }

// Source is the IP address that an endpoint would be bound to, the zero Addr
// if the provider does not say or does not use IP.
func (i Info) Source() netip.Addr {
	if !i.HasIP() || i.c.src_addr == nil {
		return netip.Addr{}
	}
	return sockaddrIP(unsafe.Slice((*byte)(i.c.src_addr), int(i.c.src_addrlen)))
}

// NIC is what the provider tells of the device, as far as it does.
type NIC struct {
	PCI  string // address on the bus, as in sysfs: "0000:3b:00.0"
	Link string // address on the link, in the provider's own form
}

// NIC returns attributes of the device, struct fid_nic of fi_nic(3).
func (i Info) NIC() (n NIC) {
	c := i.c.nic
	if c == nil {
		return n
	}
	if c.bus_attr != nil && c.bus_attr.bus_type == C.FI_BUS_PCI {
		pci := (*C.struct_fi_pci_attr)(unsafe.Pointer(&c.bus_attr.attr))
		n.PCI = fmt.Sprintf("%04x:%02x:%02x.%d", pci.domain_id, pci.bus_id, pci.device_id, pci.function_id)
	}
	if c.link_attr != nil && c.link_attr.address != nil {
		n.Link = C.GoString(c.link_attr.address)
	}
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
		if len(sa) >= sizeofIn6 {
			return netip.AddrFrom16([16]byte(sa[8:24]))
		}
	}
	return netip.Addr{}
}

// String names the provider, fabric and domain.
func (i Info) String() string {
	return strings.Join([]string{i.Provider(), i.Fabric(), i.Domain()}, " ")
}
