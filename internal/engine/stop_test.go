package engine

import (
	"io"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestStop: an endpoint that is stopped posts nothing more, and a peer that has not heard
// of it yet may write where it was told to.
func TestStop(t *testing.T) {
	const size = 128 << 10
	l := newLink(t, personalities()["tcp"], Config{})
	defer l.close(t)
	a, b := l.dial(t)
	write := func() {
		_, err := b.Write(make([]byte, size))
		require.NoError(t, err)
	}
	write() // a has a landing ring now
	_, err := io.ReadFull(a, make([]byte, size))
	require.NoError(t, err)
	writes := l.net.Stats().Writes
	l.ea.Stop()
	posted := l.ea.Stats().Posted
	_, err = a.Write(make([]byte, size))
	require.ErrorIs(t, err, syscall.ECONNRESET)
	write()
	require.Eventually(t, func() bool {
		l.ea.poller.Drain(time.Millisecond)
		s := l.net.Stats()
		return s.Writes+s.BadRemote > writes
	}, 10*time.Second, time.Millisecond)
	assert.Zero(t, l.net.Stats().BadRemote)
	assert.Equal(t, posted, l.ea.Stats().Posted)
	for _, c := range []*Conn{a, b} {
		_ = c.SetLinger(0)
		_ = c.Close()
	}
}
