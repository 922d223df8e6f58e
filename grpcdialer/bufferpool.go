package grpcdialer

import (
	"math/bits"
	"sync"

	"google.golang.org/grpc/mem"
)

// Buffers have sizes with four steps for each power of two, so that no more than a quarter
// of one is unused.
const (
	stepBits    = 2
	leastBuffer = 8  // bits of the smallest buffer's size
	mostBuffer  = 25 // and of the largest that is kept
)

// bufferPool is a pool of buffers that are not cleared.
type bufferPool struct {
	sizes [(mostBuffer-leastBuffer)<<stepBits + 1]sync.Pool
}

// buffers is used by all conns, as gRPC's pool is.
var buffers bufferPool

// BufferPool returns the pool of buffers that [TuningDialOptions] and [TuningServerOptions]
// have gRPC use. Unlike gRPC's own it does not clear them, since gRPC overwrites what it gets,
// and has more than five sizes: with gRPC's, 1 MiB is cleared for each message of more than
// 32 KiB, which takes longer than all that is done to move it. gRPC's encoding of messages
// knows no option for that; a program can have it use this pool, too, if it changes no message
// while that is sent: what was left of an earlier one could be sent instead.
//
//	func init() { experimental.SetDefaultBufferPool(grpcdialer.BufferPool()) }
func BufferPool() mem.BufferPool { return &buffers }

// Get returns a buffer of that length, with whatever is in it.
func (p *bufferPool) Get(length int) *[]byte {
	class, size := classOf(length)
	if class >= len(p.sizes) {
		b := make([]byte, length)
		return &b
	}
	if b, ok := p.sizes[class].Get().(*[]byte); ok {
		*b = (*b)[:length]
		return b
	}
	b := make([]byte, length, size)
	return &b
}

// Put takes a buffer back, unless it is of a size that Get would not have made.
func (p *bufferPool) Put(b *[]byte) {
	if class, size := classOf(cap(*b)); class < len(p.sizes) && size == cap(*b) {
		p.sizes[class].Put(b)
	}
}

// classOf is the place of the size that a buffer of some length has, and that size.
func classOf(length int) (class, size int) {
	if length <= 1<<leastBuffer {
		return 0, 1 << leastBuffer
	}
	shift := bits.Len(uint(length-1)) - 1 - stepBits
	steps := (length - 1) >> shift // from 1<<stepBits to twice that, less one
	return (shift+stepBits-leastBuffer)<<stepBits + steps - 1<<stepBits + 1, (steps + 1) << shift
}
