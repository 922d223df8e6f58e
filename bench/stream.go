package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// A worker is one conn's, or one caller's, share of the load. It works for
// about d and adds the time of every operation to h.
type worker func(d time.Duration, h *histogram) error

// A dialer opens one conn to the server under measurement.
type dialer func() (net.Conn, error)

// readSize is the buffer that a stream's reader passes to Read, on every
// transport.
const readSize = 256 << 10

// maxDials bounds the conns that all workers of one measurement open, warming
// up included: TCP keeps each one's port for a minute after Close, of about
// 28,000.
const maxDials = 20_000

// serveConns hands every conn that l accepts to handle, until l is closed.
func serveConns(l net.Listener, handle func(net.Conn) error) error {
	for {
		c, err := l.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return nil
			}
			return err
		}
		go func() {
			defer c.Close()
			// An error here shows as a failed operation of the client's.
			_ = handle(c)
		}()
	}
}

// echo returns what it reads, size bytes at a time.
func echo(size int) func(net.Conn) error {
	return func(c net.Conn) error {
		buf := make([]byte, size)
		for {
			if _, err := io.ReadFull(c, buf); err != nil {
				return err
			}
			if _, err := c.Write(buf); err != nil {
				return err
			}
		}
	}
}

// latency is the client of echo: one round trip after the other.
func latency(c net.Conn, size int) worker {
	sent, got := make([]byte, size), make([]byte, size)
	for i := range sent {
		sent[i] = byte(i)
	}
	return func(d time.Duration, h *histogram) error {
		start := time.Now()
		for end := start.Add(d); start.Before(end); {
			if _, err := c.Write(sent); err != nil {
				return err
			}
			if _, err := io.ReadFull(c, got); err != nil {
				return err
			}
			now := time.Now()
			h.add(now.Sub(start))
			start = now
		}
		if !bytes.Equal(sent, got) {
			return errors.New("the echo differs from what was sent")
		}
		return nil
	}
}

// sink reads runs of bytes: 8 bytes announce a run's length, and 8 bytes
// answer once the whole of it has been read.
func sink(c net.Conn) error {
	buf := make([]byte, readSize)
	var length [8]byte
	for {
		if _, err := io.ReadFull(c, length[:]); err != nil {
			return err
		}
		var got uint64
		for want := binary.BigEndian.Uint64(length[:]); got < want; {
			n, err := c.Read(buf[:min(want-got, readSize)])
			if err != nil {
				return err
			}
			got += uint64(n)
		}
		binary.BigEndian.PutUint64(length[:], got)
		if _, err := c.Write(length[:]); err != nil {
			return err
		}
	}
}

// bandwidth is the client of sink. The first call finds out how many writes
// the time allows; those after it make one run of that length. Only confirmed
// bytes count.
func bandwidth(c net.Conn, size int) worker {
	buf := make([]byte, size)
	var perSecond float64
	return func(d time.Duration, h *histogram) error {
		if perSecond > 0 {
			return run(c, buf, max(int(perSecond*d.Seconds()), 1), h)
		}
		start := time.Now()
		for writes := 1; time.Since(start) < d; writes *= 2 {
			began := time.Now()
			if err := run(c, buf, writes, h); err != nil {
				return err
			}
			perSecond = float64(writes) / time.Since(began).Seconds()
		}
		return nil
	}
}

// run writes buf the given number of times and awaits the confirmation.
func run(c net.Conn, buf []byte, writes int, h *histogram) error {
	want := uint64(writes) * uint64(len(buf))
	var length [8]byte
	binary.BigEndian.PutUint64(length[:], want)
	if _, err := c.Write(length[:]); err != nil {
		return err
	}
	start := time.Now()
	for range writes {
		if _, err := c.Write(buf); err != nil {
			return err
		}
		now := time.Now()
		h.add(now.Sub(start))
		start = now
	}
	if _, err := io.ReadFull(c, length[:]); err != nil {
		return err
	}
	if got := binary.BigEndian.Uint64(length[:]); got != want {
		return fmt.Errorf("the server read %d of %d bytes", got, want)
	}
	return nil
}

// connect dials, has one byte echoed, and closes, at most limit times.
func connect(dial dialer, limit int) worker {
	return func(d time.Duration, h *histogram) error {
		start := time.Now()
		end := start.Add(d)
		for n := 0; n < limit && start.Before(end); n++ {
			if err := connectOnce(dial); err != nil {
				return err
			}
			now := time.Now()
			h.add(now.Sub(start))
			start = now
		}
		return nil
	}
}

func connectOnce(dial dialer) (err error) {
	c, err := dial()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	var b [1]byte
	if _, err := c.Write(b[:]); err != nil {
		return err
	}
	_, err = io.ReadFull(c, b[:])
	return err
}

// openStreams dials n conns and returns a worker over each.
func openStreams(dial dialer, n int, work func(net.Conn) worker) ([]worker, func() error, error) {
	var conns []net.Conn
	closeAll := func() error {
		var errs error
		for _, c := range conns {
			errs = errors.Join(errs, c.Close())
		}
		return errs
	}
	var workers []worker
	for range n {
		c, err := dial()
		if err != nil {
			return nil, nil, errors.Join(err, closeAll())
		}
		conns = append(conns, c)
		workers = append(workers, work(c))
	}
	return workers, closeAll, nil
}

// openWorkers opens what j's client needs: workers, and how to close them.
func openWorkers(ctx context.Context, j job, dial dialer) ([]worker, func() error, error) {
	switch j.Mode {
	case modeLat:
		return openStreams(dial, j.Conns, func(c net.Conn) worker { return latency(c, j.Size) })
	case modeBW:
		return openStreams(dial, j.Conns, func(c net.Conn) worker { return bandwidth(c, j.Size) })
	case modeConn:
		workers := make([]worker, j.Conns)
		for i := range workers {
			workers[i] = connect(dial, maxDials/2/j.Conns) // half to warm up
		}
		return workers, func() error { return nil }, nil
	case modeRPC:
		return openCalls(ctx, j, dial)
	}
	return nil, nil, fmt.Errorf("unknown mode %q", j.Mode)
}
