package grpcdialer

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// A buffer from the pool has the length that was asked for, whatever buffers were put in.
func TestBufferPool(t *testing.T) {
	last := 0
	for length := range 1 << 16 {
		class, size := classOf(length)
		assert.GreaterOrEqual(t, size, length)
		assert.LessOrEqual(t, size, max(length+length/4, 1<<leastBuffer))
		assert.Contains(t, []int{last, last + 1}, class)
		last = class
	}
	class, size := classOf(1 << mostBuffer)
	assert.Equal(t, len(buffers.sizes)-1, class)
	assert.Equal(t, 1<<mostBuffer, size)

	var p bufferPool
	for _, length := range []int{0, 1, 255, 256, 257, 16<<10 + 5, 64 << 10, 1<<20 + 9, 1 << mostBuffer, 1<<mostBuffer + 1} {
		for range 3 {
			b := p.Get(length)
			assert.Len(t, *b, length)
			assert.LessOrEqual(t, cap(*b), max(length+length/4, 1<<leastBuffer))
			p.Put(b)
		}
	}
	for _, foreign := range []int{0, 100, 300, 1000, 3 << 20, 1<<mostBuffer + 1} {
		b := make([]byte, foreign)
		p.Put(&b)
	}
	for _, length := range []int{256, 511, 512, 1023, 2 << 20, 4 << 20, 1 << mostBuffer} {
		for range 3 {
			assert.Len(t, *p.Get(length), length)
		}
	}
}
