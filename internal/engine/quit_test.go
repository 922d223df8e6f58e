package engine

import (
	"io"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/metrics"
)

// TestQuit: nothing more is posted to a peer after Quit. As long as the peer has not been told, it
// may still write where it could before.
func TestQuit(t *testing.T) {
	for _, name := range []string{"tcp", "verbs", "saw", "cqdata"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const size = 128 << 10
			l, a, b := newConns(t, personalities()[name], Config{})
			write := func() {
				require.NoError(t, b.SetWriteDeadline(time.Now().Add(10*time.Second)))
				_, err := b.Write(make([]byte, size))
				require.NoError(t, err)
			}
			write() // a has a landing ring now
			_, err := io.ReadFull(a, make([]byte, size))
			require.NoError(t, err)

			blocked := make(chan error, 1)
			go func() {
				_, err := a.Write(make([]byte, 16<<20))
				blocked <- err
			}()
			require.Eventually(t, func() bool { return l.ea.Stats().Stalls != metrics.Stalls{} }, 10*time.Second, time.Millisecond)
			write() // so that a's ring does not count as idle
			_, err = io.ReadFull(a, make([]byte, size))
			require.NoError(t, err)
			l.a.Quit()
			posted := l.ea.Stats().Posted
			require.ErrorIs(t, <-blocked, syscall.ECONNRESET)
			l.eb.poller.Drain(100 * time.Millisecond) // what a has posted before
			writes := l.net.Stats().Writes
			write()
			require.Eventually(t, func() bool {
				l.ea.poller.Drain(time.Millisecond)
				s := l.net.Stats()
				return s.Writes+s.BadRemote > writes
			}, 10*time.Second, time.Millisecond)
			assert.Zero(t, l.net.Stats().BadRemote)
			for _, c := range []*Conn{a, b} {
				_ = c.SetLinger(0)
				_ = c.Close()
			}
			assert.Equal(t, posted, l.ea.Stats().Posted)
		})
	}
}
