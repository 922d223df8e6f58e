package bootstrap

import (
	"crypto/sha256"
	"os"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/fabric"
)

// HostID returns an ID that is equal for all processes on one host, and zero if nothing
// identifies the host. Containers on one host share the boot id; whether they share memory, and
// may use it, is found out with the page of the handshake.
func HostID() (id [16]byte) {
	for _, file := range []string{"/proc/sys/kernel/random/boot_id", "/etc/machine-id"} {
		if b, err := os.ReadFile(file); err == nil && len(b) > 0 {
			sum := sha256.Sum256(append([]byte("rdmanet host "), b...))
			copy(id[:], sum[:])
			return id
		}
	}
	return id
}

// OfferOf returns how a provider is offered to a peer.
func OfferOf(p *fabric.ProviderInfo) framing.Offer {
	return framing.Offer{
		Provider: p.Name, Fabric: p.Fabric, Domain: p.Domain, Library: p.Library,
		Protocol: p.Protocol, ProtocolVersion: p.ProtocolVersion, SameHost: p.SameHost, Settings: p.Settings,
	}
}
