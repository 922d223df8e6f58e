//go:build linux && cgo

package ofi

// #include <stdlib.h>
// #include "shim.h"
import "C"

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"unsafe"
)

// Addr is a peer in the address vector, fi_addr_t.
type Addr uint64

// maxName bounds the length of an endpoint's name in bytes. It is the limit of shm's names.
const maxName = 256

func (ep *Endpoint) openAV() error {
	if ret := C.ofi_av_open(ep.domain, &ep.av); ret != 0 {
		return callError("fi_av_open", ret)
	}
	return nil
}

func (ep *Endpoint) readName() error {
	var name [maxName]byte
	size := C.size_t(len(name))
	if ret := C.ofi_getname(ep.ep, unsafe.Pointer(&name[0]), &size); ret != 0 {
		return callError("fi_getname", ret)
	}
	ep.name = bytes.Clone(name[:min(int(size), len(name))])
	return nil
}

// Name returns the endpoint's address in the provider's own format (fi_getname). The caller must
// not change it.
func (ep *Endpoint) Name() []byte { return ep.name }

// Insert adds a peer by its endpoint's name (fi_av_insert). Names come from peers, and providers
// trust them, so a name that does not look like this endpoint's own is refused. It may block.
func (ep *Endpoint) Insert(name []byte) (Addr, error) {
	if ep.abandoned.Load() {
		return 0, ErrAbandoned
	}
	if err := ep.checkName(name); err != nil {
		return 0, err
	}
	inserted := ep.insertedName(name)
	if ep.info.HasIP() {
		inserted = inScope(ep.name, inserted)
	}
	c := C.CBytes(append(inserted, 0))
	defer C.free(c)
	var addr C.uint64_t
	ret := C.ofi_av_insert(ep.av, c, &addr)
	switch {
	case ret < 0:
		return 0, callError("fi_av_insert", ret)
	case ret != 1:
		return 0, callError("fi_av_insert", -C.EINVAL)
	}
	return Addr(addr), nil
}

// insertedName returns the name under which a peer is inserted, see Options.SlashOwn.
func (ep *Endpoint) insertedName(name []byte) []byte {
	own := ep.options.SlashOwn // fi_shm://process
	i := strings.Index(own, "://")
	if i < 0 || !bytes.HasPrefix(name, []byte(own)) {
		return bytes.Clone(name)
	}
	return slices.Concat(name[:i+3], []byte("/"), name[i+3:])
}

// inScope changes the scope of a peer's link-local address, which is the number of the interface at
// the peer, to the number that this host gives to the interface with our own address.
func inScope(own, name []byte) []byte {
	if isLinkLocal(sockaddrIP(own)) && isLinkLocal(sockaddrIP(name)) {
		copy(name[scopeAt:scopeAt+4], own[scopeAt:])
	}
	return name
}

// Remove takes a peer out of the address vector (fi_av_remove).
func (ep *Endpoint) Remove(a Addr) error {
	if ep.abandoned.Load() {
		return ErrAbandoned
	}
	if ret := C.ofi_av_remove(ep.av, C.uint64_t(a)); ret != 0 {
		return callError("fi_av_remove", ret)
	}
	return nil
}

// checkName compares a peer's name with the form of the endpoint's own: equal
// length and family for binary addresses, equal scheme and no path for names
// in text.
func (ep *Endpoint) checkName(name []byte) error {
	own := ep.name
	ok := len(name) == len(own)
	switch {
	case ep.info.attr.addr_format == C.OFI_FI_ADDR_STR:
		scheme, _, _ := strings.Cut(string(own), "://")
		rest, found := strings.CutPrefix(string(bytes.TrimSuffix(name, []byte{0})), scheme+"://")
		ok = found && rest != "" && len(name) < maxName && !strings.ContainsAny(rest, "/\x00")
	case ep.info.HasIP():
		ok = ok && bytes.Equal(name[:2], own[:2])
	}
	if !ok {
		return fmt.Errorf("not the name of a %s endpoint: %d bytes %.32q", ep.info.Provider(), len(name), name)
	}
	return nil
}
