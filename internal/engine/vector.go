package engine

import (
	"net"
	"sync"
)

// gatherSize is the most bytes that WriteBuffers gathers at a time.
const gatherSize = 64 << 10

var gatherBuffers = sync.Pool{New: func() any { return new([gatherSize]byte) }}

// WriteBuffers writes all of v as one Write would, and removes from v what is written. Small
// slices are gathered first.
func (c *Conn) WriteBuffers(v *net.Buffers) (n int64, err error) {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	buf := gatherBuffers.Get().(*[gatherSize]byte)
	defer gatherBuffers.Put(buf)
	for len(*v) > 0 && err == nil {
		var m int
		m, err = c.writeAll(gather(buf[:0], *v))
		n += int64(m)
		consume(v, m)
	}
	return n, err
}

// gather returns the first slices of v as one: as many as fit into buf, or the first one
// alone, which is not copied then.
func gather(buf []byte, v net.Buffers) []byte {
	if len(v) == 1 || len(v[0])+len(v[1]) > cap(buf) {
		return v[0]
	}
	for _, b := range v {
		if len(buf)+len(b) > cap(buf) {
			break
		}
		buf = append(buf, b...)
	}
	return buf
}

// consume removes n bytes, and the empty slices that follow them, from v.
func consume(v *net.Buffers, n int) {
	for len(*v) > 0 && n >= len((*v)[0]) {
		n -= len((*v)[0])
		(*v)[0] = nil // for the garbage collector
		*v = (*v)[1:]
	}
	if n > 0 {
		(*v)[0] = (*v)[0][n:]
	}
}
