package load

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/seed202c38ff/fabricnet/bench/internal/workload"
)

// readSize is the buffer that a stream's reader passes to Read, on every
// transport.
const readSize = 256 << 10

// A run is a sequence of messages of one size, the last of which says that it is the last. Once all
// bytes have come, they are answered with 8 bytes: how many have come.

// flood is the client of sink: one run, until the time is over. Only confirmed bytes count.
func flood(c net.Conn, send func(last bool) (int, error)) worker {
	return func(end time.Time, h *workload.Histogram) error {
		var sent uint64
		start := time.Now()
		for last := false; !last; {
			last = !start.Before(end)
			n, err := send(last)
			if err != nil {
				return err
			}
			sent += uint64(n)
			now := time.Now()
			h.Add(now.Sub(start))
			start = now
		}
		var answer [8]byte
		if _, err := io.ReadFull(c, answer[:]); err != nil {
			return err
		}
		if got := binary.BigEndian.Uint64(answer[:]); got != sent {
			return fmt.Errorf("the server confirmed %d of %d bytes", got, sent)
		}
		return nil
	}
}

// A checker is shown a stream piece by piece.
type checker interface {
	check(piece []byte) error
	ended() bool // the stream is at the end of a run
}

// sink receives runs and answers each.
func sink(c net.Conn, receive func(take func(piece []byte) error) error, runs checker) error {
	for {
		if err := sinkRun(c, receive, runs); err != nil {
			return err
		}
	}
}

// sinkRun receives one run and answers it.
func sinkRun(c net.Conn, receive func(take func(piece []byte) error) error, runs checker) error {
	var got uint64
	take := func(piece []byte) error {
		got += uint64(len(piece))
		return runs.check(piece)
	}
	for {
		if err := receive(take); err != nil {
			return err
		}
		if runs.ended() {
			break
		}
	}
	var answer [8]byte
	binary.BigEndian.PutUint64(answer[:], got)
	_, err := c.Write(answer[:])
	return err
}

// reading receives with Read.
func reading(c net.Conn) func(take func([]byte) error) error {
	buf := make([]byte, readSize)
	return func(take func([]byte) error) error {
		n, err := c.Read(buf)
		if err != nil {
			return err
		}
		return take(buf[:n])
	}
}

// lastMark is the first byte of a run's last message; others have 0 there.
const lastMark = 1

// writeMarked sends messages of size bytes with Write, always from the same memory.
func writeMarked(c net.Conn, size int) func(last bool) (int, error) {
	buf := make([]byte, size)
	return func(last bool) (int, error) {
		buf[0] = 0
		if last {
			buf[0] = lastMark
		}
		return c.Write(buf)
	}
}

// marks looks for the end of a run at the start of each message, and looks at nothing else.
type marks struct {
	size int
	next int // offset of the next message in the piece to come
	last bool
}

func (m *marks) check(piece []byte) error {
	for ; m.next < len(piece); m.next += m.size {
		m.last = piece[m.next] == lastMark
	}
	m.next -= len(piece)
	return nil
}

func (m *marks) ended() bool { return m.last && m.next == 0 }
