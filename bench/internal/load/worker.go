package load

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/seed202c38ff/fabricnet/bench/internal/workload"
)

// A worker is one conn's, or one caller's, share of the load. It works until
// about end and adds the time of every operation to h.
type worker func(end time.Time, h *workload.Histogram) error

// A dialer opens one conn to the server under measurement.
type dialer func() (net.Conn, error)

// maxDials bounds the conns that all workers of one measurement open, warming up included. TCP
// keeps the port of each one for a minute after Close, and there are about 28,000 ports.
const maxDials = 20_000

// serveConns hands every conn that l accepts to handle, until l is closed. It fails if one of them
// has carried wrong bytes. Any other error of a conn shows up at the client, as a failed operation.
func serveConns(l net.Listener, handle func(net.Conn) error) error {
	corrupt := make(chan error, 1)
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			select {
			case err := <-corrupt:
				return err
			default:
				return nil
			}
		}
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			if err := handle(c); errors.Is(err, errCorrupt) {
				select {
				case corrupt <- err:
				default: // one is enough
				}
			}
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
	return func(end time.Time, h *workload.Histogram) error {
		for start := time.Now(); start.Before(end); {
			if _, err := c.Write(sent); err != nil {
				return err
			}
			if _, err := io.ReadFull(c, got); err != nil {
				return err
			}
			now := time.Now()
			h.Add(now.Sub(start))
			start = now
		}
		if h.Total > 0 && !bytes.Equal(sent, got) { // if the time was over, there is no echo
			return errors.New("the echo differs from what was sent")
		}
		return nil
	}
}

// connect dials, has one byte echoed, and closes, at most limit times.
func connect(dial dialer, limit int) worker {
	return repeat(limit, func() error { return connectOnce(dial) })
}

// repeat does one operation after the other, at most limit times.
func repeat(limit int, op func() error) worker {
	return func(end time.Time, h *workload.Histogram) error {
		start := time.Now()
		for n := 0; n < limit && start.Before(end); n++ {
			if err := op(); err != nil {
				return err
			}
			now := time.Now()
			h.Add(now.Sub(start))
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
	return echoByte(c)
}

// echoByte is one round trip of a single byte.
func echoByte(c net.Conn) error {
	var b [1]byte
	if _, err := c.Write(b[:]); err != nil {
		return err
	}
	_, err := io.ReadFull(c, b[:])
	return err
}

// closeAll closes all conns.
func closeAll[C io.Closer](conns []C) error {
	var errs error
	for _, c := range conns {
		errs = errors.Join(errs, c.Close())
	}
	return errs
}

// openStreams dials n conns and returns a worker over each.
func openStreams(dial dialer, n int, work func(net.Conn) worker) ([]worker, func() error, error) {
	var conns []net.Conn
	var workers []worker
	for range n {
		c, err := dial()
		if err != nil {
			return nil, nil, errors.Join(err, closeAll(conns))
		}
		conns = append(conns, c)
		workers = append(workers, work(c))
	}
	return workers, func() error { return closeAll(conns) }, nil
}

// openWorkers opens what j's client needs. It returns workers, and a function that closes
// everything.
func openWorkers(ctx context.Context, j Job, dial dialer, m *meter) ([]worker, func() error, error) {
	switch j.Mode {
	case workload.ModeLat:
		return openStreams(dial, j.Conns, func(c net.Conn) worker { return latency(c, j.Size) })
	case workload.ModeBW:
		return openStreams(dial, j.Conns, func(c net.Conn) worker { return flood(c, writeMarked(c, j.Size)) })
	case workload.ModeZC:
		return openStreams(dial, j.Conns, func(c net.Conn) worker { return flood(c, sendStamped(c, j.Size)) })
	case workload.ModeIdle:
		return openIdle(dial, j.Conns, m)
	case workload.ModeConn:
		workers := make([]worker, j.Conns)
		for i := range workers {
			workers[i] = connect(dial, maxDials/2/j.Conns) // half to warm up
		}
		return workers, func() error { return nil }, nil
	case workload.ModeFirst:
		return []worker{connect(dial, 1)}, func() error { return nil }, nil
	case workload.ModeRPC:
		return openCalls(ctx, j, dial)
	case workload.ModeHTTP:
		return openBodies(j, dial)
	}
	return nil, nil, fmt.Errorf("unknown mode %q", j.Mode)
}
