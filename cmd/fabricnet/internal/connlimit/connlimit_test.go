package connlimit

import (
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func from(ip string) net.Addr {
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(ip), 1))
}

// TestOneHost: a host that has taken its places leaves those of others, whatever addresses it has.
func TestOneHost(t *testing.T) {
	for first, again := range map[string]string{
		"192.0.2.1":      "::ffff:192.0.2.1",
		"2001:db8::1":    "2001:db8::ffff:1",
		"fe80::1%eth0":   "fe80::2",
		"::ffff:1.2.3.4": "1.2.3.4",
	} {
		l := &Limiter{Max: 4, MaxPerHost: 2}
		leave, err := l.Enter(from(first))
		require.NoError(t, err)
		_, err = l.Enter(from(again))
		require.NoError(t, err)
		_, err = l.Enter(from(again))
		assert.Equal(t, ErrHost, err, "%s, %s", first, again)
		_, err = l.Enter(from("192.0.2.2"))
		assert.NoError(t, err)
		leave()
		_, err = l.Enter(from(again))
		assert.NoError(t, err, "a place that was left")
		_, err = l.Enter(from("2001:db8:1::1"))
		assert.NoError(t, err)
		_, err = l.Enter(from("192.0.2.3"))
		assert.Equal(t, ErrAll, err)
	}
}

// TestThisHost: it has no others to make room for. Only the bound of all conns counts.
func TestThisHost(t *testing.T) {
	for _, a := range []net.Addr{from("127.0.0.1"), from("::1"), &net.UnixAddr{Name: "@"}, &net.TCPAddr{}} {
		l := &Limiter{Max: 2, MaxPerHost: 1}
		for range 2 {
			_, err := l.Enter(a)
			assert.NoError(t, err, a)
		}
		_, err := l.Enter(a)
		assert.Equal(t, ErrAll, err, a)
	}
}

// TestNothingIsKept: hosts that have left are forgotten.
func TestNothingIsKept(t *testing.T) {
	l := new(Limiter)
	for _, ip := range []string{"192.0.2.1", "2001:db8::1", "127.0.0.1"} {
		leave, err := l.Enter(from(ip))
		require.NoError(t, err)
		leave()
	}
	assert.Zero(t, l.open)
	assert.Empty(t, l.hosts)
}

// TestHush: on virtual time, each kind has its own ten seconds, which refusals do not prolong.
func TestHush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := new(Hush[error])
		for range 3 {
			assert.True(t, h.Over(ErrAll))
			assert.True(t, h.Over(ErrHost))
			for range 10 {
				assert.False(t, h.Over(ErrAll))
				assert.False(t, h.Over(ErrHost))
				time.Sleep(time.Second)
			}
		}
	})
}
