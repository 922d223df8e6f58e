package load

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/seed202c38ff/fabricnet/bench/internal/workload"
)

// A turn is what a client process that does all its work on one conn is told to do next. Between
// turns the conn is idle.
type turn struct {
	Mode  string // ModeLat or ModeBW
	Size  int
	Begin time.Time // the same for all that take turns at once
	Time  time.Duration
}

// turnHead is how many bytes begin a turn: 1 for its kind and 4 for its size. What follows ends
// with a message that starts with lastMark.
const turnHead = 5

const (
	kindLat byte = 1
	kindBW  byte = 2
)

// takeTurn is the client of serveTurns.
func takeTurn(c net.Conn, mode string, size int) worker {
	head := make([]byte, turnHead)
	binary.BigEndian.PutUint32(head[1:], uint32(size))
	return func(end time.Time, h *workload.Histogram) error {
		head[0] = kindLat
		if mode == workload.ModeBW {
			head[0] = kindBW
		}
		if _, err := c.Write(head); err != nil {
			return err
		}
		if mode == workload.ModeBW {
			return flood(c, writeMarked(c, size))(end, h)
		}
		if err := latency(c, size)(end, h); err != nil {
			return err
		}
		return lastEcho(c, size)
	}
}

// lastEcho is the round trip that ends a turn of round trips.
func lastEcho(c net.Conn, size int) error {
	buf := make([]byte, size)
	buf[0] = lastMark
	if _, err := c.Write(buf); err != nil {
		return err
	}
	_, err := io.ReadFull(c, buf)
	return err
}

// serveTurns serves one turn after the other, whatever kinds they are of.
func serveTurns(c net.Conn) error {
	var head [turnHead]byte
	for {
		if _, err := io.ReadFull(c, head[:]); err != nil { // an idle conn waits here
			return err
		}
		if err := serveTurn(c, head[0], binary.BigEndian.Uint32(head[1:])); err != nil {
			return err
		}
	}
}

func serveTurn(c net.Conn, kind byte, size uint32) error {
	if size < 1 || size > MaxSize {
		return fmt.Errorf("a turn of %d bytes", size)
	}
	switch kind {
	case kindLat:
		return echoRun(c, int(size))
	case kindBW:
		return sinkRun(c, reading(c), &marks{size: int(size)})
	}
	return fmt.Errorf("a turn of kind %d", kind)
}

// echoRun is echo, up to the message that is marked as the last one.
func echoRun(c net.Conn, size int) error {
	buf := make([]byte, size)
	for last := false; !last; {
		if _, err := io.ReadFull(c, buf); err != nil {
			return err
		}
		last = buf[0] == lastMark
		if _, err := c.Write(buf); err != nil {
			return err
		}
	}
	return nil
}
