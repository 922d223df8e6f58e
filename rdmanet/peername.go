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
	side     side
	prefixes []netip.Prefix
}

// side is one of the two sides of a control connection, for the texts of errors.
type side struct {
	name, peer string
	field      string // in which its user lists prefixes
}

var (
	dialerSide   = side{"dialer", "listener", "Dialer.EndpointPrefixes"}
	listenerSide = side{"listener", "dialer", "ListenConfig.EndpointPrefixes"}
)

// check refuses an endpoint at ip of a peer whose control connection comes from, or leads to,
// another address, unless the user allows it. An address that means this host, or depends on the
// link, is never allowed there.
func (r nameRule) check(ip, control netip.Addr) error {
	ip, control = ip.Unmap().WithZone(""), control.Unmap().WithZone("")
	if ip == control {
		return nil
	}
	says := fmt.Sprintf("the %s says that its endpoint is at %v, and its control connection is at %v", r.side.peer, ip, control)
	if ip.IsLoopback() || ip.IsUnspecified() || ip.IsMulticast() || ip.IsLinkLocalUnicast() {
		return fmt.Errorf("%s (no prefix allows such an address: the %s has to name another device)", says, r.side.peer)
	}
	if slices.ContainsFunc(r.prefixes, func(p netip.Prefix) bool { return p.Contains(ip) }) {
		return nil
	}
	return fmt.Errorf("%s (if that is right, add a prefix with the former to %s, or to %s, at the %s)", says, r.side.field, prefixesVariable, r.side.name)
}

// newNameRule returns the rule of a side whose user lists those prefixes, or of the environment if
// there are none. It refuses prefixes that would contain nothing.
func newNameRule(s side, prefixes []netip.Prefix) (nameRule, error) {
	r, field := nameRule{s, prefixes}, s.field
	if len(prefixes) == 0 {
		field = prefixesVariable
		for _, text := range listIn(prefixesVariable) {
			p, err := netip.ParsePrefix(text)
			if err != nil {
				return r, invalid(field, "%q is no prefix, such as 10.0.0.0/8 or, for one address, 10.1.2.3/32", text)
			}
			r.prefixes = append(r.prefixes, p)
		}
	}
	for _, p := range r.prefixes {
		switch {
		case !p.IsValid():
			return r, invalid(field, "%q is no prefix", p.String())
		case p.Addr().Is4In6():
			return r, invalid(field, "%q: write it as a prefix of IPv4", p.String())
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
	return newNameRule(dialerSide, d.EndpointPrefixes)
}

func (lc *ListenConfig) nameRule() (nameRule, error) {
	return newNameRule(listenerSide, lc.EndpointPrefixes)
}
