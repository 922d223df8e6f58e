package rdmatest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
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

// A counterpart is another process that listens. Each conn begins with an order, which says what
// the process does with that conn.

// Order says what a conn is for.
type Order struct {
	Duty Duty
	Key  uint64 // of the bytes that the dialling side sends; those of the other side have the next key
	Size int    // in bytes, of each direction
}

// Duty is what is done with a conn.
type Duty byte

const (
	// Exchange sends, and checks what arrives, at the same time.
	Exchange Duty = iota + 1
	// WriteFirst does not read until everything is written or nothing moves any more.
	WriteFirst
	// TakeTurns writes until that blocks, reads until there is nothing to read, and so on.
	TakeTurns
	// Sink reads and discards.
	Sink
	// Answer writes back what it reads.
	Answer
	// NeverRead writes until the conn ends, and does not read.
	NeverRead
)

func init() {
	Roles["counterpart"], Roles["clients"] = serveOrders, dialForOrders
}

// serveOrders is what a counterpart does. It ends when its standard input does,
// and fails if any of its conns has failed.
func serveOrders(provider, _ string) error {
	lc := rdmanet.ListenConfig{Providers: ProviderList(provider), Backlog: 1024}
	l, err := lc.Listen(context.Background(), "rdma", testenv.Address())
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	var mu sync.Mutex
	var failed []error
	go Serve(l, func(c net.Conn) {
		if err := Obey(c.(*rdmanet.Conn)); err != nil {
			mu.Lock()
			defer mu.Unlock()
			failed = append(failed, err)
		}
	})
	_, err = io.Copy(io.Discard, os.Stdin)
	mu.Lock()
	defer mu.Unlock()
	return errors.Join(append(failed, err)...)
}

// ProviderList splits a role's providers, of which there are none for the automatic choice.
func ProviderList(providers string) []string {
	return strings.FieldsFunc(providers, func(r rune) bool { return r == ',' })
}

// Obey reads an order from a conn, and carries it out.
func Obey(c *rdmanet.Conn) error {
	var b [17]byte
	if _, err := io.ReadFull(c, b[:]); err != nil {
		return err
	}
	o := Order{Duty(b[0]), binary.LittleEndian.Uint64(b[1:]), int(binary.LittleEndian.Uint64(b[9:]))}
	o.Key++ // our own bytes
	err := o.CarryOut(c, o.Key-1, Patience)
	if err != nil {
		_ = c.SetLinger(0)
		_ = c.Close()
	}
	return err
}

// Give dials the counterpart, or any other process that obeys orders, and sends it o.
func Give(t *testing.T, d *rdmanet.Dialer, addr string, o Order) *rdmanet.Conn {
	t.Helper()
	c, err := d.DialContext(t.Context(), "rdma", addr)
	require.NoError(t, err)
	_, err = c.Write(o.Encode())
	require.NoError(t, err)
	return c.(*rdmanet.Conn)
}

// Encode returns o as it is sent.
func (o Order) Encode() []byte {
	b := binary.LittleEndian.AppendUint64([]byte{byte(o.Duty)}, o.Key)
	return binary.LittleEndian.AppendUint64(b, uint64(o.Size))
}

// CarryOut does o's duty on a conn and closes it. The bytes of the other side have the
// key theirs. With WriteFirst, reading begins when all is written or nothing has moved for still.
func (o Order) CarryOut(c *rdmanet.Conn, theirs uint64, still time.Duration) error {
	switch o.Duty {
	case Exchange:
		return o.Both(c, theirs, func(<-chan struct{}) {})
	case WriteFirst:
		return o.Both(c, theirs, func(written <-chan struct{}) { Standstill(c, still, written) })
	case TakeTurns:
		return o.InTurns(c, theirs)
	case Sink:
		_, err := io.Copy(OnlyWriter{io.Discard}, OnlyReader{c})
		return errors.Join(err, c.Close())
	case Answer:
		_, err := io.Copy(OnlyWriter{c}, OnlyReader{c})
		return errors.Join(err, c.Close())
	case NeverRead:
		for {
			if _, err := c.Write(Noise()); err != nil {
				_ = c.SetLinger(0)
				return c.Close()
			}
		}
	}
	return fmt.Errorf("no such duty: %d", o.Duty)
}

// Both writes, and reads once wait returns. written, which wait gets, is closed when writing has ended.
func (o Order) Both(c *rdmanet.Conn, theirs uint64, wait func(written <-chan struct{})) error {
	written := make(chan struct{})
	var sent error
	go func() {
		defer close(written)
		for s := (&Tide{Key: o.Key}); s.Pos < o.Size && sent == nil; {
			var n int
			n, sent = c.Write(s.next(o.Size))
			s.Pos += n
		}
		if sent == nil {
			sent = c.CloseWrite()
		}
	}()
	wait(written)
	err := verify(c, theirs, o.Size)
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
	s := Tide{Key: key}
	for {
		n, err := c.Read(buf)
		if e := s.check(buf[:n]); e != nil {
			return e
		}
		switch {
		case err == io.EOF && s.Pos == size:
			return nil
		case err != nil:
			return fmt.Errorf("after %d of %d bytes: %w", s.Pos, size, err)
		}
	}
}

// InTurns writes and reads in turns, in one goroutine.
func (o Order) InTurns(c *rdmanet.Conn, theirs uint64) error {
	const moment = 5 * time.Millisecond
	out, in := Tide{Key: o.Key}, Tide{Key: theirs}
	buf := make([]byte, 128<<10)
	for shut := false; ; {
		if err := c.SetWriteDeadline(time.Now().Add(moment)); err != nil {
			return err
		}
		for out.Pos < o.Size {
			n, err := c.Write(out.next(o.Size))
			out.Pos += n
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			if err != nil {
				return err
			}
		}
		if out.Pos == o.Size && !shut {
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
			if err == io.EOF && in.Pos == o.Size && shut {
				return c.Close()
			}
			if err == io.EOF && in.Pos == o.Size {
				break
			}
			if err != nil {
				return fmt.Errorf("after %d of %d bytes: %w", in.Pos, o.Size, err)
			}
		}
	}
}

// Pieces are the lengths of writes, depending on the position in the stream: those of
// frames and of RDMA writes, and some in between.
var Pieces = [...]int{1 << 20, 64 << 10, 1, 100 << 10, 8 << 10, 3000, 256 << 10, 9000, 32 << 10, 70_001, 500}

// Noise holds the bytes that streams are cut from. It has a length with which lost or
// repeated pieces do not go unnoticed.
var Noise = sync.OnceValue(func() []byte {
	b := make([]byte, 2<<20+61)
	_, _ = rand.NewChaCha8([32]byte{}).Read(b)
	return b
})

// Tide generates and checks the bytes of a stream, which differ from key to key.
type Tide struct {
	Key uint64
	Pos int
}

// next returns what the next Write is to send of a stream of size bytes.
func (s *Tide) next(size int) []byte {
	return s.Ahead(min(size-s.Pos, Pieces[(s.Key/2+uint64(s.Pos))%uint64(len(Pieces))]))
}

// Ahead returns the next n bytes at most.
func (s *Tide) Ahead(n int) []byte {
	all := Noise()
	at := int((s.Key*7919 + uint64(s.Pos)) % uint64(len(all)))
	return all[at:min(at+n, len(all))]
}

// check compares b, which was read, with the stream's next bytes.
func (s *Tide) check(b []byte) error {
	for len(b) > 0 {
		want := s.Ahead(len(b))
		if !bytes.Equal(b[:len(want)], want) {
			return fmt.Errorf("stream %d differs between %d and %d", s.Key, s.Pos, s.Pos+len(want))
		}
		s.Pos += len(want)
		b = b[len(want):]
	}
	return nil
}

// Moved returns how many bytes a conn has sent, and how many it has received, read or not.
func Moved(c *rdmanet.Conn) (sent, received int) {
	i := c.Info()
	return int(i.SmallSent + i.LargeSent), int(i.SmallReceived + i.LargeReceived)
}

// Standstill waits until nothing has moved on a conn for as long as still, or done
// is closed.
func Standstill(c *rdmanet.Conn, still time.Duration, done <-chan struct{}) {
	moved := func() int { sent, received := Moved(c); return sent + received }
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

// StartCounterpart starts a counterpart, and returns its address. The test fails if any of its conns
// has failed by the end of the test.
func StartCounterpart(t *testing.T, provider string) (addr string) {
	t.Helper()
	return Listening(t, Process(t, "counterpart", provider, ""))
}

// Listening is StartCounterpart for a command that the caller has prepared.
func Listening(t *testing.T, cmd *exec.Cmd) (addr string) {
	t.Helper()
	cmd.Env = append(cmd.Env, "GORACE=atexit_sleep_ms=100") // the default is a second
	stdin, stdout := Start(t, cmd)
	t.Cleanup(func() {
		_ = stdin.Close()
		assert.NoError(t, cmd.Wait(), "the other process")
	})
	return Line(t, stdout)
}

// AcrossTo runs a test with each real provider, against another process.
func AcrossTo(t *testing.T, test func(t *testing.T, d *rdmanet.Dialer, addr string)) {
	t.Helper()
	for _, provider := range Providers {
		t.Run(provider, func(t *testing.T) {
			tr := new(rdmanet.Transport)
			Cleanly(t, tr)
			addr := StartCounterpart(t, provider)
			t.Cleanup(func() { assert.NoError(t, tr.Close()) })
			test(t, &rdmanet.Dialer{Transport: tr, Providers: []string{provider}, Timeout: Patience}, addr)
		})
	}
}

// Within runs f. If that takes longer than limit, which is more than it ever needs, Within
// fails the test, logs the state of each conn, and ends f by a deadline on each.
func Within(t *testing.T, limit time.Duration, conns []*rdmanet.Conn, f func()) {
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
