package rdmanet_test

import (
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// TestBubbles: in a bubble of testing/synctest, Dial and Listen fail, and nothing of a Transport becomes
// the bubble's.
func TestBubbles(t *testing.T) {
	onEach(t, func(t *testing.T, used *rdmanet.Transport, providers []string) {
		l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: used, Providers: providers})
		c, s := rdmatest.Meet(t, &rdmanet.Dialer{Transport: used, Providers: providers}, l)
		for name, tr := range map[string]*rdmanet.Transport{"used": used, "fresh": new(rdmanet.Transport)} {
			for range 2 {
				synctest.Test(t, func(t *testing.T) {
					refused := func(err error) {
						t.Helper()
						require.ErrorIs(t, err, rdmanet.ErrUnsupported, name)
						assert.ErrorContains(t, err, "testing/synctest", name)
					}
					time.Sleep(time.Hour)
					d := &rdmanet.Dialer{Transport: tr, Providers: providers, Fallback: rdmanet.FallbackTCP}
					_, err := d.Dial("rdma", l.Addr().String())
					refused(err)
					lc := rdmanet.ListenConfig{Transport: tr, Providers: providers, AcceptTCP: true}
					_, err = lc.Listen(t.Context(), "rdma", "127.0.0.1:0")
					refused(err)
					ln, err := net.Listen("tcp", "127.0.0.1:0")
					require.NoError(t, err)
					_, err = lc.ListenOn(ln)
					refused(err)
					assert.ErrorIs(t, ln.Close(), net.ErrClosed)
				})
			}
			if name == "used" {
				rdmatest.Echo(t, c, s)
			}
		}
		c2, s2 := rdmatest.Meet(t, &rdmanet.Dialer{Transport: used, Providers: providers}, l)
		rdmatest.CloseAll(t, c, s, c2, s2)
	})
}

// TestBubblesAround: what was made outside can be used and closed in a bubble, and what is left of it
// goes on outside.
func TestBubblesAround(t *testing.T) {
	for name, in := range map[string]func(t *testing.T, tr *rdmanet.Transport, l *rdmanet.Listener, c, s *rdmanet.Conn){
		"conns": func(t *testing.T, _ *rdmanet.Transport, _ *rdmanet.Listener, c, s *rdmanet.Conn) {
			require.ErrorIs(t, c.SetDeadline(time.Now().Add(time.Minute)), rdmanet.ErrUnsupported)
			require.NoError(t, c.SetDeadline(time.Time{}))
			_, err := c.Write([]byte("hello"))
			require.NoError(t, err)
			_, err = io.ReadFull(s, make([]byte, 5))
			require.NoError(t, err)
			rdmatest.CloseAll(t, c, s)
		},
		"deadlines": func(t *testing.T, _ *rdmanet.Transport, l *rdmanet.Listener, c, _ *rdmanet.Conn) {
			soon := time.Now().Add(time.Minute)
			for _, set := range []func(time.Time) error{c.SetDeadline, c.SetReadDeadline, c.SetWriteDeadline, l.SetDeadline} {
				var oe *net.OpError
				require.ErrorAs(t, set(soon), &oe)
				require.Equal(t, "set", oe.Op)
				require.ErrorIs(t, oe, errors.ErrUnsupported)
			}
		},
		"Listener.Close": func(t *testing.T, _ *rdmanet.Transport, l *rdmanet.Listener, _, _ *rdmanet.Conn) {
			assert.NoError(t, l.Close())
		},
		"CloseIdle": func(_ *testing.T, tr *rdmanet.Transport, _ *rdmanet.Listener, _, _ *rdmanet.Conn) { tr.CloseIdle() },
		"Transport.Close": func(t *testing.T, tr *rdmanet.Transport, _ *rdmanet.Listener, _, _ *rdmanet.Conn) {
			assert.NoError(t, tr.Close())
		},
	} {
		t.Run(name, func(t *testing.T) {
			onEach(t, func(t *testing.T, tr *rdmanet.Transport, providers []string) {
				l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr, Providers: providers})
				d := &rdmanet.Dialer{Transport: tr, Providers: providers}
				c, s := rdmatest.Meet(t, d, l)
				c2, s2 := rdmatest.Meet(t, d, l)
				synctest.Test(t, func(t *testing.T) { in(t, tr, l, c, s) })
				if name != "Transport.Close" {
					rdmatest.Echo(t, c2, s2)
				}
				for _, c := range []*rdmanet.Conn{c, s, c2, s2} {
					_ = c.SetLinger(0)
					_ = c.Close()
				}
			})
		})
	}
}
