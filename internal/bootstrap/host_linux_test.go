package bootstrap

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestHostID(t *testing.T) {
	first, err := HostID()
	require.NoError(t, err)
	again, err := HostID()
	require.NoError(t, err)
	assert.NotZero(t, first)
	assert.Equal(t, first, again)
}

// TestNoHostID: nothing takes the place of a boot ID that cannot be read, and the error says where it is.
func TestNoHostID(t *testing.T) {
	defer func(file string) { bootID = file }(bootID)
	empty := filepath.Join(t.TempDir(), "empty")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	for _, bootID = range []string{empty, "/nonexistent/boot_id"} {
		id, err := HostID()
		assert.Zero(t, id)
		assert.ErrorContains(t, err, bootID)
	}
}

// TestHostUnknown: if a side cannot tell its host, the page tells whether the two share one. Where
// they do not, both sides' errors say which one could not tell, and why.
func TestHostUnknown(t *testing.T) {
	unknown := func(b *fakeBinder, why string) { b.hello.Host, b.hello.HostUnknown = [16]byte{}, why }
	for name, sides := range map[string]struct{ dialer, listener bool }{
		"dialer":   {dialer: true},
		"listener": {listener: true},
		"both":     {true, true},
	} {
		for _, apart := range []bool{false, true} {
			t.Run(map[bool]string{false: name, true: name + ", other host"}[apart], func(t *testing.T) {
				d, l := newBinder(offer("shm")), newBinder(offer("shm"))
				var says []string
				if sides.dialer {
					unknown(d, "no boot ID in A")
					says = append(says, "the dialer cannot tell its host: no boot ID in A")
				}
				if sides.listener {
					unknown(l, "no boot ID in B")
					says = append(says, "the listener cannot tell its host: no boot ID in B")
				}
				if apart {
					l.authorised = func(context.Context, *Peer) {
						for _, file := range pages(t) {
							assert.NoError(t, os.Remove(file))
						}
					}
				}
				dnc, lnc := loopback(t)
				dr, lr := meet(t, dnc, lnc, Config{}, Config{}, d, l)
				if !apart {
					require.NoError(t, dr.err)
					require.NoError(t, lr.err)
					assert.NotNil(t, dr.s.Page())
					return
				}
				for _, err := range []error{dr.err, lr.err} {
					assert.ErrorIs(t, err, ErrNoProvider)
					assert.ErrorContains(t, err, "no such file or directory")
					for _, text := range says {
						assert.ErrorContains(t, err, text)
					}
				}
			})
		}
	}
}
