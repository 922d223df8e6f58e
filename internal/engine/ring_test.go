package engine

import (
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestWholeRing: a writer that could use the whole ring goes on although the
// reader has not told it of the last few bytes that it read, and not only once
// the ring has been idle for so long that it is taken back.
func TestWholeRing(t *testing.T) {
	const size, writes = 64 << 10, 20
	virtual(t, Config{Ring: size}, func(t *testing.T, l *link) {
		a, b := l.dial(t)
		start := time.Now()
		go func() {
			for range writes {
				_, err := a.Write(make([]byte, size))
				assert.NoError(t, err)
			}
			assert.NoError(t, a.CloseWrite())
		}()
		n, err := io.CopyBuffer(onlyWriter{io.Discard}, onlyReader{b}, make([]byte, 10_000))
		require.NoError(t, err)
		require.EqualValues(t, size*writes, n)
		require.Positive(t, b.Counters().LargeIn)
		assert.Less(t, time.Since(start), choreTime)
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
	})
}
