package engine

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/metrics"
)

// TestQuit: nothing more is posted to a peer after Quit, which may still write where it could until it has been told.
func TestQuit(t *testing.T) {
	for _, name := range []string{"tcp", "verbs", "saw", "cqdata"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const size = 128 << 10
			l, a, b := newConns(t, personalities()[name], Config{})
			write := func() {
				require.NoError(t, b.SetWriteDeadline(time.Now().Add(10*time.Second)))
				require.NoError(t, writeN(b, size))
			}
			write() // a has a landing ring now
			require.NoError(t, readN(a, size))

			blocked := begin(func() error { return writeN(a, 16<<20) })
			comesTrue(t, func() bool { return l.ea.Stats().Stalls != metrics.Stalls{} })
			write() // so that a's ring does not count as idle
			require.NoError(t, readN(a, size))
			l.a.Quit()
			posted := l.ea.Stats().Posted
			require.ErrorIs(t, <-blocked, syscall.ECONNRESET)
			l.eb.poller.Drain(100 * time.Millisecond) // what a has posted before
			writes := l.net.Stats().Writes
			write()
			comesTrue(t, func() bool {
				l.ea.poller.Drain(time.Millisecond)
				s := l.net.Stats()
				return s.Writes+s.BadRemote > writes
			})
			assert.Zero(t, l.net.Stats().BadRemote)
			giveUp(a, b)
			assert.Equal(t, posted, l.ea.Stats().Posted)
		})
	}
}
