package rdmanet

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// nameRule says where the endpoint of a peer may be. The peer names it in the handshake, and the
// provider then connects, or sends, to the address in the name: without a rule a peer could have
// this process connect to whatever it likes, from the inside of a network for example.
type nameRule struct {
	field    string // in which the user lists prefixes
	prefixes []netip.Prefix
}

// check refuses an endpoint at ip of a peer whose control connection comes from, or leads to,
// another address, unless the user allows it. An address that means this host, or depends on the
// link, is never allowed there.
func (r nameRule) check(ip, control netip.Addr) error {
	ip, control = ip.Unmap().WithZone(""), control.Unmap().WithZone("")
	if ip == control {
		return nil
	}
	const format = "the peer says that its endpoint is at %v, and its control connection is at %v"
	if ip.IsLoopback() || ip.IsUnspecified() || ip.IsMulticast() || ip.IsLinkLocalUnicast() {
		return fmt.Errorf(format, ip, control)
	}
	if slices.ContainsFunc(r.prefixes, func(p netip.Prefix) bool { return p.Contains(ip) }) {
		return nil
	}
	return fmt.Errorf(format+" (if that is right, add a prefix with the former to %s)", ip, control, r.field)
}

// newNameRule returns the rule of a field that has those prefixes, or of the environment if it has
// none. It refuses prefixes that would contain nothing.
func newNameRule(field string, prefixes []netip.Prefix) (nameRule, error) {
	const wrong = "%q is no prefix of IPv4 or IPv6 addresses"
	r := nameRule{field, prefixes}
	if len(prefixes) == 0 {
		for _, text := range listIn(prefixesVariable) {
			p, err := netip.ParsePrefix(text)
			if err != nil {
				return r, invalid(prefixesVariable, wrong, text)
			}
			r.prefixes = append(r.prefixes, p)
		}
	}
	for _, p := range r.prefixes {
		if !p.IsValid() || p.Addr().Is4In6() {
			return r, invalid(field, wrong, p.String())
		}
	}
	return r, nil
}

// key tells rules apart.
func (r nameRule) key() string {
	var b strings.Builder
	for _, p := range r.prefixes {
		b.WriteString(p.String())
		b.WriteByte(' ')
	}
	return b.String()
}

func (d *Dialer) nameRule() (nameRule, error) {
	return newNameRule("Dialer.EndpointPrefixes", d.EndpointPrefixes)
}

func (lc *ListenConfig) nameRule() (nameRule, error) {
	return newNameRule("ListenConfig.EndpointPrefixes", lc.EndpointPrefixes)
}
