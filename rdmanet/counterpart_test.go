package rdmanet_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// counterpart is another process that listens. Each conn begins with an order,
// which says what the process does with that conn.
type counterpart struct {
	cmd  *exec.Cmd
	addr string
}

// order says what a conn is for.
type order struct {
	duty duty
	key  uint64 // of the bytes that the dialling side sends; those of the other side have the next key
	size int    // in bytes, of each direction
}

type duty byte

const (
	// exchange sends, and checks what arrives, at the same time.
	exchange duty = iota + 1
	// writeFirst does not read until everything is written or nothing moves any more.
	writeFirst
	// takeTurns writes until that blocks, reads until there is nothing to read, and so on.
	takeTurns
	// sink reads and discards.
	sink
	// answer writes back what it reads.
	answer
	// neverRead writes until the conn ends, and does not read.
	neverRead
)

func init() {
	roles["counterpart"], roles["clients"] = serveOrders, dialForOrders
}

// serveOrders is what a counterpart does. It ends when its standard input does,
// and fails if any of its conns has failed.
func serveOrders(provider, _ string) error {
	lc := rdmanet.ListenConfig{Providers: list(provider), Backlog: 1024}
	l, err := lc.Listen(context.Background(), "rdma", testenv.Address())
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	var mu sync.Mutex
	var failed []error
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				if err := obey(c.(*rdmanet.Conn)); err != nil {
					mu.Lock()
					defer mu.Unlock()
					failed = append(failed, err)
				}
			}()
		}
	}()
	_, err = io.Copy(io.Discard, os.Stdin)
	mu.Lock()
	defer mu.Unlock()
	return errors.Join(append(failed, err)...)
}

// list splits a role's providers, of which there are none for the automatic choice.
func list(providers string) []string {
	return strings.FieldsFunc(providers, func(r rune) bool { return r == ',' })
}

func obey(c *rdmanet.Conn) error {
	var b [17]byte
	if _, err := io.ReadFull(c, b[:]); err != nil {
		return err
	}
	o := order{duty(b[0]), binary.LittleEndian.Uint64(b[1:]), int(binary.LittleEndian.Uint64(b[9:]))}
	o.key++ // our own bytes
	err := o.carryOut(c, o.key-1, patience)
	if err != nil {
		_ = c.SetLinger(0)
		_ = c.Close()
	}
	return err
}

// give dials the counterpart, or any other process that obeys orders, and sends it o.
func give(t *testing.T, d *rdmanet.Dialer, addr string, o order) *rdmanet.Conn {
	t.Helper()
	c, err := d.DialContext(t.Context(), "rdma", addr)
	require.NoError(t, err)
	_, err = c.Write(o.encode())
	require.NoError(t, err)
	return c.(*rdmanet.Conn)
}

func (o order) encode() []byte {
	b := binary.LittleEndian.AppendUint64([]byte{byte(o.duty)}, o.key)
	return binary.LittleEndian.AppendUint64(b, uint64(o.size))
}

// carryOut does o's duty on a conn and closes it. The bytes of the other side have the
// key theirs. With writeFirst, reading begins when all is written or nothing has moved for still.
func (o order) carryOut(c *rdmanet.Conn, theirs uint64, still time.Duration) error {
	switch o.duty {
	case exchange:
		return o.both(c, theirs, func(<-chan struct{}) {})
	case writeFirst:
		return o.both(c, theirs, func(written <-chan struct{}) { standstill(c, still, written) })
	case takeTurns:
		return o.inTurns(c, theirs)
	case sink:
		_, err := io.Copy(onlyWriter{io.Discard}, onlyReader{c})
		return errors.Join(err, c.Close())
	case answer:
		_, err := io.Copy(onlyWriter{c}, onlyReader{c})
		return errors.Join(err, c.Close())
	case neverRead:
		for {
			if _, err := c.Write(noise()); err != nil {
				_ = c.SetLinger(0)
				return c.Close()
			}
		}
	}
	return fmt.Errorf("no such duty: %d", o.duty)
}

// both writes, and reads once wait returns. written, which wait gets, is closed when writing has ended.
func (o order) both(c *rdmanet.Conn, theirs uint64, wait func(written <-chan struct{})) error {
	written := make(chan struct{})
	var sent error
	go func() {
		defer close(written)
		for s := (&tide{key: o.key}); s.pos < o.size && sent == nil; {
			var n int
			n, sent = c.Write(s.next(o.size))
			s.pos += n
		}
		if sent == nil {
			sent = c.CloseWrite()
		}
	}()
	wait(written)
	err := verify(c, theirs, o.size)
	if err != nil {
		_ = c.SetLinger(0)
		_ = c.Close()
	}
	<-written
	if err == nil && sent == nil {
		err = c.Close()
	}
	return errors.Join(sent, err)
}

// verify reads a stream to its end and checks its bytes and size.
func verify(c *rdmanet.Conn, key uint64, size int) error {
	buf := make([]byte, 128<<10)
	s := tide{key: key}
	for {
		n, err := c.Read(buf)
		if e := s.check(buf[:n]); e != nil {
			return e
		}
		switch {
		case err == io.EOF && s.pos == size:
			return nil
		case err != nil:
			return fmt.Errorf("after %d of %d bytes: %w", s.pos, size, err)
		}
	}
}

// inTurns writes and reads in turns, in one goroutine.
func (o order) inTurns(c *rdmanet.Conn, theirs uint64) error {
	const moment = 5 * time.Millisecond
	out, in := tide{key: o.key}, tide{key: theirs}
	buf := make([]byte, 128<<10)
	for shut := false; ; {
		if err := c.SetWriteDeadline(time.Now().Add(moment)); err != nil {
			return err
		}
		for out.pos < o.size {
			n, err := c.Write(out.next(o.size))
			out.pos += n
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			if err != nil {
				return err
			}
		}
		if out.pos == o.size && !shut {
			if err := c.CloseWrite(); err != nil {
				return err
			}
			shut = true
		}
		if err := c.SetReadDeadline(time.Now().Add(moment)); err != nil {
			return err
		}
		for {
			n, err := c.Read(buf)
			if e := in.check(buf[:n]); e != nil {
				return e
			}
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			if err == io.EOF && in.pos == o.size && shut {
				return c.Close()
			}
			if err == io.EOF && in.pos == o.size {
				break
			}
			if err != nil {
				return fmt.Errorf("after %d of %d bytes: %w", in.pos, o.size, err)
			}
		}
	}
}

// pieces are the lengths of writes, depending on the position in the stream: those of
// frames and of RDMA writes, and some in between.
var pieces = [...]int{1 << 20, 64 << 10, 1, 100 << 10, 8 << 10, 3000, 256 << 10, 9000, 32 << 10, 70_001, 500}

// noise holds the bytes that streams are cut from. It has a length with which lost or
// repeated pieces do not go unnoticed.
var noise = sync.OnceValue(func() []byte {
	b := make([]byte, 2<<20+61)
	_, _ = rand.NewChaCha8([32]byte{}).Read(b)
	return b
})

// tide generates and checks the bytes of a stream, which differ from key to key.
type tide struct {
	key uint64
	pos int
}

// next returns what the next Write is to send of a stream of size bytes.
func (s *tide) next(size int) []byte {
	return s.ahead(min(size-s.pos, pieces[(s.key/2+uint64(s.pos))%uint64(len(pieces))]))
}

// ahead returns the next n bytes at most.
func (s *tide) ahead(n int) []byte {
	all := noise()
	at := int((s.key*7919 + uint64(s.pos)) % uint64(len(all)))
	return all[at:min(at+n, len(all))]
}

// check compares b, which was read, with the stream's next bytes.
func (s *tide) check(b []byte) error {
	for len(b) > 0 {
		want := s.ahead(len(b))
		if !bytes.Equal(b[:len(want)], want) {
			return fmt.Errorf("stream %d differs between %d and %d", s.key, s.pos, s.pos+len(want))
		}
		s.pos += len(want)
		b = b[len(want):]
	}
	return nil
}

// moved returns how many bytes a conn has sent, and how many it has received, read or not.
func moved(c *rdmanet.Conn) (sent, received int) {
	i := c.Info()
	return int(i.SmallSent + i.LargeSent), int(i.SmallReceived + i.LargeReceived)
}

// standstill waits until nothing has moved on a conn for as long as still, or done
// is closed.
func standstill(c *rdmanet.Conn, still time.Duration, done <-chan struct{}) {
	moved := func() int { sent, received := moved(c); return sent + received }
	for last, since := moved(), time.Now(); time.Since(since) < still; {
		select {
		case <-done:
			return
		case <-time.After(5 * time.Millisecond):
		}
		if now := moved(); now != last {
			last, since = now, time.Now()
		}
	}
}

// startCounterpart starts a counterpart. The test fails if any of its conns has failed
// by the end of the test.
func startCounterpart(t *testing.T, provider string) *counterpart {
	t.Helper()
	return listening(t, process(t, "counterpart", provider, ""))
}

// listening is startCounterpart for a command that the caller has prepared.
func listening(t *testing.T, cmd *exec.Cmd) *counterpart {
	t.Helper()
	cmd.Env = append(cmd.Env, "GORACE=atexit_sleep_ms=100") // the default is a second
	stdin, stdout := startProcess(t, cmd)
	t.Cleanup(func() {
		_ = stdin.Close()
		assert.NoError(t, cmd.Wait(), "the other process")
	})
	return &counterpart{cmd, line(t, stdout)}
}

// acrossTo runs a test with each real provider, against another process.
func acrossTo(t *testing.T, test func(t *testing.T, d *rdmanet.Dialer, addr string)) {
	t.Helper()
	for _, provider := range realProviders {
		t.Run(provider, func(t *testing.T) {
			tr := new(rdmanet.Transport)
			cleanly(t, tr)
			other := startCounterpart(t, provider)
			t.Cleanup(func() { assert.NoError(t, tr.Close()) })
			test(t, &rdmanet.Dialer{Transport: tr, Providers: []string{provider}, Timeout: patience}, other.addr)
		})
	}
}

// within runs f. If that takes longer than limit, which is more than it ever needs, within
// fails the test, logs the state of each conn, and ends f by a deadline on each.
func within(t *testing.T, limit time.Duration, conns []*rdmanet.Conn, f func()) {
	t.Helper()
	timer := time.AfterFunc(limit, func() {
		t.Errorf("still going on after %v", limit)
		for i, c := range conns {
			t.Logf("conn %d: %+v", i, c.Info())
			_ = c.SetDeadline(time.Unix(1, 0))
		}
	})
	defer timer.Stop()
	f()
}
