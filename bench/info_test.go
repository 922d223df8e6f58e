package main

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/doctor"
)

func TestInfoFlags(t *testing.T) {
	p, err := parse([]string{"-info", "-local", "::1", "-json", "-"})
	require.NoError(t, err)
	assert.True(t, p.info)
	_, err = parse([]string{"-info", "-demo"})
	require.Error(t, err)
	one, err := doctor.LocalAddrs(p.local)
	require.NoError(t, err)
	assert.Equal(t, []netip.Addr{netip.IPv6Loopback()}, one)
	_, err = doctor.LocalAddrs("nonsense")
	require.Error(t, err)
	all, err := doctor.LocalAddrs("")
	require.NoError(t, err)
	assert.Contains(t, all, netip.MustParseAddr("127.0.0.1"))
}
