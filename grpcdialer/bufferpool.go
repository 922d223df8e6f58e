package grpcdialer

import (
	"math/bits"
	"sync"

	"google.golang.org/grpc/mem"
)

// Buffers have sizes in four steps for each power of two, so that no more than a quarter
// of a buffer is unused, except in the smallest ones.
const (
	stepBits    = 2
	leastBuffer = 8  // bits of the smallest buffer's size
	mostBuffer  = 25 // and of the largest that is kept
)

// bufferPool is a pool of buffers that are not cleared.
type bufferPool struct {
	sizes [(mostBuffer-leastBuffer)<<stepBits + 1]sync.Pool
}

// buffers is shared by all conns, as gRPC's own pool is.
var buffers bufferPool

// BufferPool returns the pool of buffers that [TuningDialOptions] and [TuningServerOptions]
// make gRPC use. Unlike gRPC's own pool, it does not clear buffers, since gRPC overwrites what
// it gets, and it has more than five sizes. With gRPC's pool, 1 MiB is cleared for each message
// of more than 32 KiB, which takes longer than everything that is done to move the message.
// There is no option for gRPC's encoding of messages, but a program can make that use this pool
// too, as below, if it changes no message while the message is being sent: otherwise what was
// left of an earlier message could be sent instead.
//
//	func init() { experimental.SetDefaultBufferPool(grpcdialer.BufferPool()) }
func BufferPool() mem.BufferPool { return &buffers }

// Get returns a buffer of the given length. Its contents are arbitrary.
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

// Put takes a buffer back, unless it has a size that Get would not have made.
func (p *bufferPool) Put(b *[]byte) {
	if class, size := classOf(cap(*b)); class < len(p.sizes) && size == cap(*b) {
		p.sizes[class].Put(b)
	}
}

// classOf returns the size that a buffer of some length has, and the index of that size
// in bufferPool.sizes.
func classOf(length int) (class, size int) {
	if length <= 1<<leastBuffer {
		return 0, 1 << leastBuffer
	}
	shift := bits.Len(uint(length-1)) - 1 - stepBits
	steps := (length - 1) >> shift // from 1<<stepBits to twice that, less one
	return (shift+stepBits-leastBuffer)<<stepBits + steps - 1<<stepBits + 1, (steps + 1) << shift
}
