package pool

import (
	"bytes"
	"crypto/rand"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestCopyPastTheCachesIsACopy(t *testing.T) {
	src := make([]byte, 1000)
	rand.Read(src)
	for _, n := range []int{0, 1, 63, 64, 65, 128, 200, 1000} {
		for at := range 17 { // every alignment
			dst, want := make([]byte, 1100), make([]byte, 1100)
			require.Equal(t, n, copy(want[at:], src[:n]))
			require.Equal(t, n, copyPast(dst[at:at+n], src))
			require.True(t, bytes.Equal(want, dst), "%d bytes at %d", n, at)
			require.Equal(t, n, copyPast(dst[at:], src[:n]))
			require.True(t, bytes.Equal(want, dst), "%d bytes at %d", n, at)
		}
	}
}

func TestCopierChangesItsWay(t *testing.T) {
	const n = 64 << 10
	var c Copier
	src, dst := make([]byte, n), make([]byte, n)
	rand.Read(src)
	slow, fast := 25*time.Microsecond, 2*time.Microsecond
	for range slowRow - 1 {
		c.note(n, slow)
	}
	assert.False(t, c.past, "a few may be due to an interrupt")
	c.note(n, fast)
	for range slowRow {
		c.note(n, slow)
	}
	assert.True(t, c.past)
	for range pastRow - 1 {
		require.Equal(t, n, c.Copy(dst, src))
		require.True(t, c.past)
	}
	assert.True(t, bytes.Equal(src, dst))
	clear(dst)
	require.Equal(t, n, c.Copy(dst, src))
	assert.False(t, c.past, "it tries the ordinary way again")
	assert.True(t, bytes.Equal(src, dst))
}

// BenchmarkCopy compares the two ways of copying when no other core has the memory in its caches.
func BenchmarkCopy(b *testing.B) {
	const n = 64 << 10
	dst, src := make([]byte, n), make([]byte, n)
	for name, f := range map[string]func(dst, src []byte) int{
		"ordinary": func(dst, src []byte) int { return copy(dst, src) }, "past the caches": copyPast,
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(n)
			for b.Loop() {
				f(dst, src)
			}
		})
	}
}
