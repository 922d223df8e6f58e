package load

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"

	"github.com/seed202c38ff/fabricnet/bench/internal/workload"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// lastStamp is the bit of a stamp that ends a run.
const lastStamp = 1 << 63

// errCorrupt: bytes have arrived that were not sent, or in the wrong place.
var errCorrupt = errors.New("wrong bytes")

// stamper numbers all strides of a stream.
type stamper struct {
	stride int
	next   uint64
}

func (s *stamper) stamp(message []byte, last bool) {
	for at := 0; at < len(message); at += s.stride {
		number := s.next
		if last && at+s.stride == len(message) {
			number |= lastStamp
		}
		binary.BigEndian.PutUint64(message[at:], number)
		s.next++
	}
}

// stamps verifies what stamper has written, in pieces of any length.
type stamps struct {
	stride int
	next   uint64
	at     int // offset of the next byte in its stride
	stamp  [workload.StampSize]byte
	last   bool
}

func (s *stamps) check(piece []byte) error {
	for len(piece) > 0 {
		n := 0
		if s.at < workload.StampSize {
			n = copy(s.stamp[s.at:], piece)
			if s.at+n == workload.StampSize {
				if err := s.verify(); err != nil {
					return err
				}
			}
		} else {
			n = min(s.stride-s.at, len(piece))
		}
		piece = piece[n:]
		s.at = (s.at + n) % s.stride
	}
	return nil
}

func (s *stamps) verify() error {
	got := binary.BigEndian.Uint64(s.stamp[:])
	s.last = got&lastStamp != 0
	if got &^= lastStamp; got != s.next {
		return fmt.Errorf("%w: stamp %d instead of %d", errCorrupt, got, s.next)
	}
	s.next++
	return nil
}

func (s *stamps) ended() bool { return s.last && s.at == 0 }

// sendStamped sends stamped messages of size bytes, without a copy if c can do that. If it cannot,
// it uses Write, always from the same memory.
func sendStamped(c net.Conn, size int) func(last bool) (int, error) {
	n, err := workload.Stride(size)
	if err != nil {
		return func(bool) (int, error) { return 0, err }
	}
	s := stamper{stride: n}
	if conn, ok := c.(*rdmanet.Conn); ok {
		return func(last bool) (int, error) {
			b, err := conn.AllocBuffer(size)
			if err != nil {
				return 0, err
			}
			s.stamp(b.Bytes(), last)
			return size, conn.SendBuffer(b)
		}
	}
	buf := make([]byte, size)
	return func(last bool) (int, error) {
		s.stamp(buf, last)
		return c.Write(buf)
	}
}

// sinkStamped is sink for stamped messages, without a copy if c can do that.
func sinkStamped(c net.Conn, size int) error {
	n, err := workload.Stride(size)
	if err != nil {
		return err
	}
	receive := reading(c)
	if conn, ok := c.(*rdmanet.Conn); ok {
		receive = func(take func([]byte) error) error {
			b, err := conn.RecvBuffer()
			if err != nil {
				return err
			}
			defer b.Release()
			return take(b.Bytes())
		}
	}
	return sink(c, receive, &stamps{stride: n})
}
