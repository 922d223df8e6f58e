//go:build !linux || !cgo

package ofifabric

import (
	"net/netip"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
)

// New returns a Fabric whose methods return fabric.ErrUnsupported.
func New() fabric.Fabric { return unsupported{} }

type unsupported struct{}

func (unsupported) Providers(netip.Addr) ([]fabric.ProviderInfo, error) {
	return nil, fabric.ErrUnsupported
}

func (unsupported) Open(string, netip.Addr) (fabric.Endpoint, error) {
	return nil, fabric.ErrUnsupported
}
