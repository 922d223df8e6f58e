package bootstrap

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/framing"
)

// similar begins like a preamble, and is longer than what Sniff looks at.
const similar = "RDx is another protocol"

// sniffed returns a connection on which text was sent and then looked at by Sniff.
func sniffed(t *testing.T, text string) (client *net.TCPConn, replay net.Conn) {
	t.Helper()
	c, s := loopback(t)
	_, err := io.WriteString(c, text)
	require.NoError(t, err)
	fabric, replay, err := Sniff(s, time.Now().Add(10*time.Second))
	require.NoError(t, err)
	require.False(t, fabric)
	return c.(*net.TCPConn), replay
}

var longAgo = time.Unix(1, 0)

// TestReplayDeadline: after a deadline has passed, Read fails even if bytes are there,
// as on TCP, and none of them are lost.
func TestReplayDeadline(t *testing.T) {
	for name, set := range map[string]func(net.Conn, time.Time) error{
		"read": net.Conn.SetReadDeadline, "both": net.Conn.SetDeadline,
	} {
		t.Run(name, func(t *testing.T) {
			_, replay := sniffed(t, similar)
			buf := make([]byte, len(similar))
			_, err := io.ReadFull(replay, buf[:1])
			require.NoError(t, err)
			require.NoError(t, set(replay, longAgo))
			for range 2 {
				n, err := replay.Read(buf[1:])
				assert.Zero(t, n)
				isTimeout(t, err)
				var oe *net.OpError
				require.ErrorAs(t, err, &oe)
				assert.Equal(t, "read", oe.Op)
				assert.Equal(t, replay.LocalAddr(), oe.Source)
				assert.Equal(t, replay.RemoteAddr(), oe.Addr)
				moved, err := replay.(io.WriterTo).WriteTo(io.Discard)
				assert.Zero(t, moved)
				isTimeout(t, err)
			}
			require.NoError(t, set(replay, time.Time{}))
			_, err = io.ReadFull(replay, buf[1:])
			require.NoError(t, err)
			assert.Equal(t, similar, string(buf))
		})
	}
	t.Run("write", func(t *testing.T) {
		_, replay := sniffed(t, similar)
		require.NoError(t, replay.SetWriteDeadline(longAgo))
		_, err := io.ReadFull(replay, make([]byte, len(similar)))
		require.NoError(t, err)
	})
}

// TestReplayClosed: nothing can be read after Close, whatever is left.
func TestReplayClosed(t *testing.T) {
	_, replay := sniffed(t, similar)
	_, err := replay.Read(make([]byte, 1))
	require.NoError(t, err)
	require.NoError(t, replay.Close())
	for _, b := range [][]byte{nil, make([]byte, 1)} {
		n, err := replay.Read(b)
		assert.Zero(t, n)
		assert.ErrorIs(t, err, net.ErrClosed)
	}
	n, err := replay.(io.WriterTo).WriteTo(io.Discard)
	assert.Zero(t, n)
	assert.ErrorIs(t, err, net.ErrClosed)
}

// TestReplayEmptyRead: a Read into an empty buffer takes no bytes and does not block.
func TestReplayEmptyRead(t *testing.T) {
	_, replay := sniffed(t, similar)
	for _, deadline := range []time.Time{{}, longAgo} {
		require.NoError(t, replay.SetReadDeadline(deadline))
		n, err := replay.Read(nil)
		assert.Zero(t, n)
		assert.NoError(t, err, "as on TCP, whatever the deadline")
	}
	require.NoError(t, replay.SetReadDeadline(time.Time{}))
	buf := make([]byte, len(similar))
	_, err := io.ReadFull(replay, buf)
	require.NoError(t, err)
	assert.Equal(t, similar, string(buf))
	_, err = replay.Read(nil)
	assert.NoError(t, err)
}

// TestReplayConcurrentReads: each byte goes to exactly one Read, and the bytes of one Read are
// contiguous.
func TestReplayConcurrentReads(t *testing.T) {
	text := make([]byte, 256) // each byte has a value of its own
	for i := range text {
		text[i] = byte(i)
	}
	copy(text, "RD") // which the next line keeps unique
	text['R'], text['D'] = 0, 1
	for range 50 {
		c, replay := sniffed(t, string(text))
		require.NoError(t, c.CloseWrite())
		var mu sync.Mutex
		var got []byte
		var wg sync.WaitGroup
		for size := range 4 {
			wg.Go(func() {
				buf := make([]byte, size+1)
				for {
					n, err := replay.Read(buf)
					mu.Lock()
					assert.Contains(t, string(text), string(buf[:n]))
					got = append(got, buf[:n]...)
					mu.Unlock()
					if err != nil {
						assert.Equal(t, io.EOF, err)
						return
					}
				}
			})
		}
		wg.Wait()
		require.Len(t, got, len(text))
		for _, b := range text {
			require.Equal(t, 1, bytes.Count(got, []byte{b}), "byte %d", b)
		}
	}
}

// TestReplayWakes: a Read that blocks after the replayed bytes is ended by a deadline and
// by Close, like any other.
func TestReplayWakes(t *testing.T) {
	for name, tt := range map[string]struct {
		end  func(net.Conn) error
		want error
	}{
		"deadline": {func(c net.Conn) error { return c.SetReadDeadline(longAgo) }, os.ErrDeadlineExceeded},
		"close":    {net.Conn.Close, net.ErrClosed},
	} {
		t.Run(name, func(t *testing.T) {
			_, replay := sniffed(t, "RDx")
			done := make(chan error)
			read := make(chan struct{})
			go func() {
				n, err := replay.Read(make([]byte, 10))
				assert.Equal(t, 3, n)
				assert.NoError(t, err)
				close(read)
				_, err = replay.Read(make([]byte, 10))
				done <- err
			}()
			<-read
			require.NoError(t, tt.end(replay))
			select {
			case err := <-done:
				assert.ErrorIs(t, err, tt.want)
			case <-time.After(10 * time.Second):
				t.Fatal("Read still waits")
			}
		})
	}
}

// shortWriter takes less than it is given, and returns err, which may be nil.
type shortWriter struct{ err error }

func (w shortWriter) Write(b []byte) (int, error) { return len(b) - 1, w.err }

func TestReplayWriteTo(t *testing.T) {
	t.Run("all", func(t *testing.T) {
		c, replay := sniffed(t, similar)
		require.NoError(t, c.CloseWrite())
		var out bytes.Buffer
		n, err := io.Copy(&out, replay)
		require.NoError(t, err)
		assert.EqualValues(t, len(similar), n)
		assert.Equal(t, similar, out.String())
		n, err = io.Copy(&out, replay)
		assert.NoError(t, err)
		assert.Zero(t, n)
	})
	t.Run("after a Read", func(t *testing.T) {
		c, replay := sniffed(t, similar)
		require.NoError(t, c.CloseWrite())
		_, err := io.ReadFull(replay, make([]byte, 2))
		require.NoError(t, err)
		var out bytes.Buffer
		_, err = io.Copy(&out, replay)
		require.NoError(t, err)
		assert.Equal(t, similar[2:], out.String())
	})
	broken := errors.New("broken")
	for name, w := range map[string]shortWriter{"short": {nil}, "broken": {broken}} {
		t.Run(name, func(t *testing.T) {
			_, replay := sniffed(t, similar)
			n, err := replay.(io.WriterTo).WriteTo(w)
			assert.EqualValues(t, framing.PreambleSize-1, n)
			if w.err == nil {
				w.err = io.ErrShortWrite
			}
			assert.ErrorIs(t, err, w.err)
		})
	}
}
