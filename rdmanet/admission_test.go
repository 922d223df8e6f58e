package rdmanet

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/engine"
)

// TestAdmission: a new connection displaces the oldest unauthorized one, and an authorized one only if
// there is no other.
func TestAdmission(t *testing.T) {
	c := newAdmission(3, 9, 9)
	soon, stop := context.WithTimeout(t.Context(), 10*time.Second)
	defer stop()
	ctxs := map[string]context.Context{}
	in := map[string]*newcomer{}
	enter := func(name string) {
		ctx, cancel := context.WithCancelCause(t.Context())
		ctxs[name] = ctx
		n, err := c.enter(soon, func(cause error) {
			cancel(cause)
			go c.leave(in[name]) // as the handshake does when it ends
		}, netip.Prefix{})
		require.NoError(t, err)
		in[name] = n
	}
	dropped := func(name string) bool { return errors.Is(context.Cause(ctxs[name]), errTooManyHandshakes) }

	for _, name := range []string{"a", "b", "c"} {
		enter(name)
	}
	assert.Equal(t, 3, c.size())
	c.authorize(in["a"])
	for _, tt := range []struct{ comes, goes string }{{"d", "b"}, {"e", "c"}} {
		enter(tt.comes)
		assert.True(t, dropped(tt.goes), "%s goes", tt.goes)
		assert.Equal(t, 3, c.size())
	}
	c.authorize(in["b"]) // too late: it has been dropped already
	c.authorize(in["e"])
	c.authorize(in["d"])
	enter("f")
	assert.True(t, dropped("a"), "the first authorized one goes, as all are authorized")
	for _, name := range []string{"d", "e", "f"} {
		assert.False(t, dropped(name), name)
		c.leave(in[name])
	}
	assert.Zero(t, c.size())
	assert.Zero(t, c.unauthorized.Len()+c.authorized.Len())
}

// TestAdmissionEnds: a connection that waits for the place of one that does not leave at once
// stops waiting when the listener closes.
func TestAdmissionEnds(t *testing.T) {
	c := newAdmission(1, 9, 9)
	_, err := c.enter(t.Context(), func(error) {}, netip.Prefix{}) // ignores that it is to leave
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = c.enter(ctx, func(error) {}, netip.Prefix{})
	assert.ErrorIs(t, err, context.Canceled)
}

// TestAdmissionOfTheSecond: the peer of a provider that did not work may go away after the next
// provider has worked. The newcomer stays admitted, since it was not admitted by that one.
func TestAdmissionOfTheSecond(t *testing.T) {
	c := newAdmission(1, 9, 9)
	n, err := c.enter(t.Context(), func(error) {}, netip.Prefix{})
	require.NoError(t, err)
	first, second := new(engine.Peer), new(engine.Peer)
	for _, p := range []*engine.Peer{first, second} {
		require.NoError(t, c.place(t.Context(), n))
		c.proves(n, p)
	}
	require.NoError(t, c.admit(n), "by its Open")
	c.gone(n, first)
	require.NoError(t, c.admit(n), "by its Confirm")
	require.ErrorIs(t, c.place(t.Context(), n), ErrMalformed, "a third one")
	c.leave(n)
	assert.Equal(t, 1, c.total)
	c.gone(n, second)
	assert.Zero(t, c.total)
	assert.Empty(t, c.peers)
}

// TestIgnoredOpen: an Open for which there is no place is ignored, and nobody answers it. Its dialer
// has to come again, even if there is a place by the time of its Confirm.
func TestIgnoredOpen(t *testing.T) {
	c := newAdmission(9, 1, 9)
	comes := func() (*newcomer, *engine.Peer) {
		n, err := c.enter(t.Context(), func(error) {}, netip.Prefix{})
		require.NoError(t, err)
		require.NoError(t, c.place(t.Context(), n))
		p := new(engine.Peer)
		c.proves(n, p)
		return n, p
	}
	first, peer := comes()
	require.NoError(t, c.admit(first))
	second, _ := comes()
	require.ErrorIs(t, c.admit(second), ErrTooManyPeers, "by its Open")
	c.gone(first, peer)
	_, err := c.full(second)
	require.NoError(t, err)
	require.ErrorIs(t, c.admit(second), ErrBusy, "by its Confirm")
	c.leave(second)
	third, _ := comes()
	require.NoError(t, c.admit(third))
}

// TestAdmittedUnconfirmed: a dialer that has opened a conn, but does not confirm, has become a
// peer. It holds no place among the handshakes, from where newer ones could not displace it.
func TestAdmittedUnconfirmed(t *testing.T) {
	c := newAdmission(2, 9, 9)
	for range 2 {
		ctx, cancel := context.WithCancelCause(t.Context())
		n, err := c.enter(t.Context(), cancel, netip.Prefix{})
		require.NoError(t, err)
		go func() { // the handshake, waiting for Confirm
			<-ctx.Done()
			c.leave(n)
		}()
		require.NoError(t, c.place(t.Context(), n))
		c.proves(n, new(engine.Peer))
		require.NoError(t, c.admit(n), "by its Open")
	}
	soon, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := c.enter(soon, func(error) {}, netip.MustParsePrefix("192.0.2.1/32"))
	assert.NoError(t, err, "the next connection, of another host")
}
