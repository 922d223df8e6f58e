package systemtest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/race"
	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

func init() {
	rdmatest.Roles["exit while writing"] = leave(exitWhileWriting)
	rdmatest.Roles["return while writing"] = leave(writeOn)
	rdmatest.Roles["exit while reading"] = leave(exitWhileReading)
	rdmatest.Roles["exit after CloseWrite"] = leave(exitAfterCloseWrite)
	rdmatest.Roles["write and exit"], rdmatest.Roles["read and exit"] = writeAndExit, readAndExit
	rdmatest.Roles["compute"] = compute
	for _, size := range exitSizes {
		rdmatest.Roles[exitRole(size)] = exitAfter(size, size, func(*rdmanet.Conn) error { return nil })
		rdmatest.Roles[endRole(size)] = exitAfter(size, size, (*rdmanet.Conn).CloseWrite)
	}
	rdmatest.Roles[exitPieces] = exitAfter(60_000, 60, func(*rdmanet.Conn) error { return nil })
	rdmatest.Roles[closedPieces] = exitAfter(60_000, 60, func(*rdmanet.Conn) error { return rdmanet.DefaultTransport.Close() })
}

const (
	exitPieces   = "write 60 bytes a thousand times and exit"
	closedPieces = "write 60 bytes a thousand times, close the Transport and exit"
)

// exitSizes are in bytes: from a frame to more than a landing ring holds.
var exitSizes = []int{100, 4_200, 20_000, 60_000, 3_000_000}

func exitRole(size int) string { return fmt.Sprintf("write %d bytes and exit", size) }
func endRole(size int) string  { return fmt.Sprintf("write %d bytes, CloseWrite and exit", size) }

// exitAfter makes a role that writes so many bytes, in pieces, calls end, and exits without closing anything.
func exitAfter(size, piece int, end func(*rdmanet.Conn) error) func(provider, addr string) error {
	return leave(func(c *rdmanet.Conn) error {
		for b := range slices.Chunk(longData(size), piece) {
			if n, err := c.Write(b); err != nil {
				return fmt.Errorf("after %d bytes: %w", n, err)
			}
		}
		if err := end(c); err != nil {
			return err
		}
		os.Exit(0)
		return nil
	})
}

func longData(size int) []byte { return bytes.Repeat(exitData(), 1+size/exitSize)[:size] }

// TestWriteExit: a process exits as soon as Write has returned. Over shared memory everything
// arrives all the same, as it does over TCP, even for a reader that begins later. Elsewhere what
// arrives is a prefix.
func TestWriteExit(t *testing.T) {
	roles := map[string]int{exitPieces: 60_000, closedPieces: 60_000}
	for _, size := range exitSizes {
		roles[exitRole(size)] = size
	}
	for role, size := range roles {
		t.Run(role, func(t *testing.T) {
			whole := make(map[string]int)
			rounds := race.Fewer(rdmatest.Rounds(10, 500))
			meetProcesses(t, rounds, role, func(t *testing.T, i int, cmd *exec.Cmd, c net.Conn) {
				got, err := readAfter(t, i, size, cmd, c)
				require.True(t, err == nil || errors.Is(err, syscall.ECONNRESET), "round %d: %v", i, err)
				require.True(t, bytes.HasPrefix(longData(size), got), "round %d: %d bytes", i, len(got))
				if provider := c.(*rdmanet.Conn).Info().Provider; len(got) == size {
					countMu.Lock()
					whole[provider]++
					countMu.Unlock()
				} else {
					lossless := provider == "shm"
					require.False(t, lossless, "round %d: %d of %d bytes", i, len(got), size)
				}
			})
			t.Cleanup(func() { t.Logf("everything arrived, of %d rounds: %v", rounds, whole) })
		})
	}
}

var countMu sync.Mutex // guards what the providers' parallel tests count

// TestWriteCloseWriteExit: after CloseWrite everything arrives, and io.EOF, over each provider.
func TestWriteCloseWriteExit(t *testing.T) {
	for _, size := range exitSizes {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			meetProcesses(t, race.Fewer(rdmatest.Rounds(10, 500)), endRole(size), func(t *testing.T, i int, cmd *exec.Cmd, c net.Conn) {
				got, err := readAfter(t, i, size, cmd, c)
				require.NoError(t, err, "round %d: %d bytes", i, len(got))
				require.True(t, bytes.Equal(longData(size), got), "round %d: %d bytes", i, len(got))
			})
		})
	}
}

// readAfter reads to the end of what a process writes that exits: while that goes on or, every other
// round, once it has exited, if so much fits into the buffers.
func readAfter(t *testing.T, i, size int, cmd *exec.Cmd, c net.Conn) ([]byte, error) {
	t.Helper()
	late := i%2 == 0 && size <= exitSize
	if late {
		require.NoError(t, cmd.Wait())
		time.Sleep(time.Duration(i%4) * 50 * time.Millisecond) // the end of the process has been noticed, or not yet
	}
	require.NoError(t, c.SetReadDeadline(time.Now().Add(rdmatest.Patience)))
	got, err := io.ReadAll(c)
	require.NoError(t, c.Close())
	if !late {
		require.NoError(t, cmd.Wait())
	}
	return got, err
}

// leave makes a role that dials, and then ends the process while f is in the middle of something.
func leave(f func(c *rdmanet.Conn) error) func(provider, addr string) error {
	return func(provider, addr string) error {
		d := rdmanet.Dialer{Providers: []string{provider}, Timeout: rdmatest.Patience}
		c, err := d.Dial("rdma", addr)
		if err != nil {
			return err
		}
		return f(c.(*rdmanet.Conn))
	}
}

// writeOn starts a goroutine that writes until the process ends, and waits until that is
// well under way.
func writeOn(c *rdmanet.Conn) error {
	go func() {
		for err := error(nil); err == nil; {
			_, err = c.Write(exitData())
		}
	}()
	for start := time.Now(); c.Info().LargeSent < 4*exitSize; time.Sleep(time.Millisecond) {
		if time.Since(start) > rdmatest.Patience {
			return errors.New("the writer does not get on")
		}
	}
	return nil
}

func exitWhileWriting(c *rdmanet.Conn) error {
	if err := writeOn(c); err != nil {
		return err
	}
	os.Exit(0)
	return nil
}

// exitWhileReading ends while its peer is blocked in Write, and while there is unread data.
func exitWhileReading(c *rdmanet.Conn) error {
	if _, err := io.CopyN(io.Discard, c, 2*exitSize); err != nil {
		return err
	}
	os.Exit(0)
	return nil
}

// exitAfterCloseWrite ends when it has sent everything and the peer has received it.
func exitAfterCloseWrite(c *rdmanet.Conn) error {
	if _, err := c.Write(exitData()[:exitSmall]); err != nil {
		return err
	}
	if err := c.CloseWrite(); err != nil {
		return err
	}
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		return err
	}
	os.Exit(0)
	return nil
}

const exitSmall = 40_000 // bytes, which fit into a receive window

// TestExitWithoutClose: a process ends without closing anything. Its peer gets what has
// arrived and notices the end at once, and nothing is left behind.
func TestExitWithoutClose(t *testing.T) {
	tests := map[string]func(t *testing.T, c *rdmanet.Conn, gone func()){
		"exit while writing":   survivesWriter,
		"return while writing": survivesWriter,
		"exit while reading": func(t *testing.T, c *rdmanet.Conn, gone func()) {
			writing := rdmatest.Begin(func() (int, error) {
				for {
					if _, err := c.Write(exitData()); err != nil {
						return 0, err
					}
				}
			})
			gone()
			writing.End(t, "Write", syscall.EPIPE, syscall.ECONNRESET)
			rdmatest.Expect(t, "Read", rdmatest.Read(c).Wait(), syscall.ECONNRESET)
		},
		"exit after CloseWrite": func(t *testing.T, c *rdmanet.Conn, gone func()) {
			rdmatest.Eventually(t, func() bool { i := c.Info(); return i.SmallReceived+i.LargeReceived == exitSmall }, "all has come")
			_, err := c.Write([]byte{1})
			require.NoError(t, err)
			gone()
			got := rdmatest.Begin(func() (int, error) {
				b, err := io.ReadAll(c)
				if err == nil && !bytes.Equal(b, exitData()[:exitSmall]) {
					err = fmt.Errorf("%d bytes of other data", len(b))
				}
				return len(b), err
			})
			require.Equal(t, exitSmall, got.End(t, "ReadAll", nil))
			// The stream's end did not mean that the process had ended; a failing Write does.
			require.Eventually(t, func() bool {
				_, err := c.Write([]byte{1})
				return errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET)
			}, rdmatest.Prompt, time.Millisecond)
		},
	}
	for _, provider := range rdmatest.Providers {
		t.Run(provider, func(t *testing.T) {
			tr := new(rdmanet.Transport)
			rdmatest.Cleanly(t, tr)
			l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr, Providers: []string{provider}})
			for role, test := range tests {
				t.Run(role, func(t *testing.T) {
					for range rdmatest.Rounds(2, 300) {
						cmd := rdmatest.Process(t, role, provider, l.Addr().String())
						started := time.Now()
						require.NoError(t, cmd.Start())
						c := rdmatest.Accept(t, l)
						test(t, c, func() { require.NoError(t, cmd.Wait()) })
						rdmatest.Shut(c).End(t, "Close", nil)
						left, err := rdmatest.RegionsOf(started, cmd.Process.Pid)
						require.NoError(t, err)
						require.Empty(t, left)
					}
				})
			}
			rdmatest.Eventually(t, func() bool { return tr.Stats().Peers == 0 }, "no peers are left")
			assert.Zero(t, tr.Stats().Providers[provider].Conns)
		})
	}
}

// survivesWriter reads what a writer that has ended has sent, which may be any number of bytes.
func survivesWriter(t *testing.T, c *rdmanet.Conn, gone func()) {
	t.Helper()
	var got bytes.Buffer
	reading := rdmatest.Begin(func() (int, error) { n, err := c.WriteTo(&got); return int(n), err })
	gone()
	reading.End(t, "Read", syscall.ECONNRESET)
	want := exitData()
	for got.Len() > 0 {
		b := got.Next(exitSize)
		require.True(t, bytes.Equal(want[:len(b)], b))
	}
	rdmatest.Expect(t, "Write", rdmatest.Write(c, want).Wait(), syscall.EPIPE, syscall.ECONNRESET)
}

const exitSize = 1 << 20

func exitData() []byte {
	data := make([]byte, exitSize)
	for i := range data {
		data[i] = byte(i * i >> 7)
	}
	return data
}

// writeAndExit writes a mebibyte, closes the conn, and exits without closing the Transport.
func writeAndExit(provider, addr string) error {
	d := rdmanet.Dialer{Providers: []string{provider}, Timeout: rdmatest.Patience}
	c, err := d.Dial("rdma", addr)
	if err != nil {
		return err
	}
	if _, err := c.Write(exitData()); err != nil {
		return err
	}
	if err := c.Close(); err != nil {
		return err
	}
	os.Exit(0)
	return nil
}

// TestWriteCloseExit: what was written before Close arrives whole, although the process
// exits at once.
func TestWriteCloseExit(t *testing.T) {
	want := exitData()
	check := func(t *testing.T, i int, cmd *exec.Cmd, c net.Conn) {
		if i%2 == 0 { // read while it writes, or after it has gone
			require.NoError(t, cmd.Wait())
		}
		require.NoError(t, c.SetReadDeadline(time.Now().Add(rdmatest.Patience)))
		got, err := io.ReadAll(c)
		require.NoError(t, err, "round %d", i)
		require.True(t, bytes.Equal(want, got), "round %d: %d bytes", i, len(got))
		require.NoError(t, c.Close())
		if i%2 != 0 {
			require.NoError(t, cmd.Wait())
		}
	}
	t.Run("quiet", func(t *testing.T) {
		meetProcesses(t, race.Fewer(rdmatest.Rounds(100, 1000)), "write and exit", check)
	})
	t.Run("busy", func(t *testing.T) { // other programs take all processors
		for range runtime.NumCPU() {
			stdin, _ := rdmatest.Start(t, rdmatest.Process(t, "compute", "", ""))
			t.Cleanup(func() { _ = stdin.Close() })
		}
		meetProcesses(t, race.Fewer(rdmatest.Rounds(5, 200)), "write and exit", check)
	})
}

// compute takes a processor until its standard input ends.
func compute(string, string) error {
	var over atomic.Bool
	go func() {
		for !over.Load() {
		}
	}()
	_, err := io.Copy(io.Discard, os.Stdin)
	over.Store(true)
	return err
}

// meetProcesses starts that many processes, one after the other and over each provider, to dial a
// listener, and calls meet with each accepted conn.
func meetProcesses(t *testing.T, times int, role string, meet func(t *testing.T, i int, cmd *exec.Cmd, c net.Conn)) {
	for _, provider := range rdmatest.Providers {
		t.Run(provider, func(t *testing.T) {
			t.Parallel()
			tr := new(rdmanet.Transport)
			defer func() { assert.NoError(t, tr.Close()) }()
			l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr, Providers: []string{provider}})
			for i := range times {
				cmd := rdmatest.Process(t, role, provider, l.Addr().String())
				require.NoError(t, cmd.Start())
				meet(t, i, cmd, rdmatest.Accept(t, l))
			}
		})
	}
}

// readAndExit reads everything, closes the conn, and exits without closing the Transport.
func readAndExit(provider, addr string) error {
	d := rdmanet.Dialer{Providers: []string{provider}, Timeout: rdmatest.Patience}
	c, err := d.Dial("rdma", addr)
	if err != nil {
		return err
	}
	got, err := io.ReadAll(c)
	if err == nil && len(got) != exitSize {
		err = fmt.Errorf("%d bytes", len(got))
	}
	if err := errors.Join(err, c.Close()); err != nil {
		return err
	}
	os.Exit(0)
	return nil
}

// TestReadCloseExit: a process that has read everything may exit, and the writer's Close
// knows that all of it has arrived.
func TestReadCloseExit(t *testing.T) {
	meetProcesses(t, rdmatest.Rounds(20, 1000), "read and exit", func(t *testing.T, i int, cmd *exec.Cmd, c net.Conn) {
		_, err := c.Write(exitData())
		require.NoError(t, err, "round %d", i)
		require.NoError(t, c.Close(), "round %d", i)
		require.NoError(t, cmd.Wait())
	})
}
