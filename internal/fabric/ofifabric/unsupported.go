//go:build !linux || !cgo

package ofifabric

import (
	"fmt"
	"net/netip"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
)

// New returns a Fabric whose methods return fabric.ErrUnsupported.
func New() fabric.Fabric { return unsupported{} }

type unsupported struct{}

var errUnsupported = fmt.Errorf("%w: this program was built without cgo (build it with CGO_ENABLED=1, a C compiler and libfabric-dev), or for a system other than Linux", fabric.ErrUnsupported)

func (unsupported) Supported() error { return errUnsupported }

func (unsupported) Providers(netip.Addr) ([]fabric.ProviderInfo, error) {
	return nil, errUnsupported
}

func (unsupported) Open(string, netip.Addr) (fabric.Endpoint, error) {
	return nil, errUnsupported
}
