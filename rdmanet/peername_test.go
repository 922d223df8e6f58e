package rdmanet

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestNameRule(t *testing.T) {
	rule := Dialer{EndpointPrefixes: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd01::/64")}}
	everywhere := Dialer{EndpointPrefixes: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}}
	const field = "Dialer.EndpointPrefixes"
	for name, tt := range map[string]struct {
		of          Dialer
		ip, control string
		says        string // "" if it may be there
	}{
		"where the control connection is":   {Dialer{}, "192.0.2.1", "192.0.2.1", ""},
		"the same, as IPv6":                 {Dialer{}, "::ffff:192.0.2.1", "192.0.2.1", ""},
		"loopback, and so is the control":   {Dialer{}, "127.0.0.1", "127.0.0.1", ""},
		"link-local, and so is the control": {Dialer{}, "fe80::1", "fe80::1%eth0", ""},
		"another host":                      {Dialer{}, "192.0.2.2", "192.0.2.1", field},
		"another loopback address":          {Dialer{}, "127.0.0.2", "127.0.0.1", "127.0.0.2"},
		"within a prefix":                   {rule, "10.1.2.3", "192.0.2.1", ""},
		"within a prefix of IPv6":           {rule, "fd01::7", "192.0.2.1", ""},
		"within a prefix, as IPv6":          {rule, "::ffff:10.1.2.3", "192.0.2.1", ""},
		"outside the prefixes":              {rule, "10.2.2.3", "192.0.2.1", field},
		"anywhere":                          {everywhere, "198.51.100.1", "192.0.2.1", ""},
		"this host":                         {everywhere, "127.0.0.1", "192.0.2.1", "127.0.0.1"},
		"this host, as IPv6":                {everywhere, "::ffff:127.0.0.1", "192.0.2.1", "127.0.0.1"},
		"this host in IPv6":                 {everywhere, "::1", "fd01::1", "::1"},
		"nowhere":                           {everywhere, "0.0.0.0", "192.0.2.1", "0.0.0.0"},
		"a cloud's metadata":                {everywhere, "169.254.169.254", "192.0.2.1", "169.254.169.254"},
		"multicast":                         {everywhere, "224.0.0.1", "192.0.2.1", "224.0.0.1"},
	} {
		t.Run(name, func(t *testing.T) {
			rule, err := tt.of.nameRule()
			require.NoError(t, err)
			err = rule.check(netip.MustParseAddr(tt.ip), netip.MustParseAddr(tt.control))
			if tt.says == "" {
				assert.NoError(t, err)
				return
			}
			assert.ErrorContains(t, err, tt.says)
			assert.ErrorContains(t, err, tt.control)
		})
	}
}

func TestEndpointPrefixes(t *testing.T) {
	for _, bad := range []netip.Prefix{{}, netip.PrefixFrom(netip.MustParseAddr("10.0.0.0"), 33), netip.MustParsePrefix("::ffff:10.0.0.0/104")} {
		list := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), bad}
		_, err := (&Dialer{EndpointPrefixes: list}).Dial("rdma", "127.0.0.1:1")
		assert.ErrorIs(t, err, ErrConfig)
		assert.ErrorContains(t, err, "Dialer.EndpointPrefixes")
		_, err = (&ListenConfig{EndpointPrefixes: list}).Listen(t.Context(), "rdma", "127.0.0.1:0")
		assert.ErrorIs(t, err, ErrConfig)
		assert.ErrorContains(t, err, "ListenConfig.EndpointPrefixes")
	}
}

// The environment takes the place of fields that are not set.
func TestPrefixesVariable(t *testing.T) {
	t.Setenv(prefixesVariable, "10.1.0.0/16, fd01::/64")
	rule, err := new(Dialer).nameRule()
	require.NoError(t, err)
	assert.Equal(t, []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd01::/64")}, rule.prefixes)
	own := []netip.Prefix{netip.MustParsePrefix("10.2.0.0/16")}
	rule, err = (&ListenConfig{EndpointPrefixes: own}).nameRule()
	require.NoError(t, err)
	assert.Equal(t, own, rule.prefixes)
	for _, bad := range []string{"10.1.0.0", "10.1.0.0/33", "::ffff:10.0.0.0/104"} {
		t.Setenv(prefixesVariable, bad)
		_, err = Listen("rdma", "127.0.0.1:0")
		require.ErrorIs(t, err, ErrConfig)
		require.ErrorContains(t, err, prefixesVariable+": ")
		_, err = Dial("rdma", "127.0.0.1:1")
		require.ErrorIs(t, err, ErrConfig)
		require.ErrorContains(t, err, prefixesVariable+": ")
	}
}
