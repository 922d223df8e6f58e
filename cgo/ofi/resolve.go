//go:build linux && cgo

package ofi

// #include "resolve.h"
import "C"

import (
	"bytes"
	"fmt"
	"time"
	"unsafe"
)

// Resolve makes the system look up the device and the link address by which a peer is reached, as
// the verbs provider does before it connects (rdma_resolve_addr of librdmacm). It waits for an
// answer until the timeout, in whole milliseconds. name is that of the peer's endpoint. Resolve
// does nothing if names are not IP addresses, or if there is no device.
func (ep *Endpoint) Resolve(name []byte, timeout time.Duration) error {
	if err := ep.checkName(name); err != nil || !ep.info.HasIP() {
		return err
	}
	from := bytes.Clone(ep.name)
	clear(from[2:4]) // any port: the endpoint's own is in use
	if ret := C.ofi_resolve(unsafe.Pointer(&from[0]), unsafe.Pointer(&name[0]), C.int(timeout.Milliseconds())); ret != 0 {
		return fmt.Errorf("%w (no way from %s to %s over RDMA: ping one from the other)",
			callError("rdma_resolve_addr", ret), sockaddrIP(from), sockaddrIP(name))
	}
	return nil
}
