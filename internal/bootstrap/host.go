package bootstrap

import (
	"crypto/sha256"
	"fmt"
	"os"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/fabric"
)

// bootID is the file that identifies a running kernel: random(4). Tests change it.
var bootID = "/proc/sys/kernel/random/boot_id"

// HostID returns an ID that is equal for all processes on one host, or zero and an error if nothing
// identifies the host, as with systemd's ProcSubset=pid. Containers on one host share the boot ID, but
// not /etc/machine-id. Whether they share memory, and may use it, is found out with the page of the
// handshake.
func HostID() (id [16]byte, err error) {
	b, err := os.ReadFile(bootID)
	if err == nil && len(b) == 0 {
		err = fmt.Errorf("%s is empty", bootID)
	}
	if err != nil {
		return id, err
	}
	sum := sha256.Sum256(append([]byte("rdmanet host "), b...))
	copy(id[:], sum[:])
	return id, nil
}

// compareHosts notes what the two sides say about their hosts. If one cannot tell, the page may.
func (hs *handshake) compareHosts(listener, dialer *framing.Hello) {
	unknown := func(name string, h *framing.Hello) {
		if h.Host == [16]byte{} {
			hs.doubts = append(hs.doubts, fmt.Sprintf("the %s cannot tell its host: %s", name, h.HostUnknown))
		}
	}
	unknown("listener", listener)
	unknown("dialer", dialer)
	hs.otherHost = len(hs.doubts) == 0 && listener.Host != dialer.Host
}

// OfferOf returns how a provider is offered to a peer.
func OfferOf(p *fabric.ProviderInfo) framing.Offer {
	return framing.Offer{
		Provider: p.Name, Fabric: p.Fabric, Domain: p.Domain, Library: p.Library,
		Protocol: p.Protocol, ProtocolVersion: p.ProtocolVersion, SameHost: p.SameHost, Settings: p.Settings,
	}
}
