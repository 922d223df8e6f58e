package rdmanet_test

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/pool"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// scribbled is a simulated fabric whose peers can change what they have sent.
type scribbled struct {
	*simfabric.Network
	mu   sync.Mutex
	open []*writable // guarded by mu
}

// writable is memory that peers may write to at any time.
type writable struct {
	pool.Region
	n   *scribbled
	mem []byte
}

type scribbledEndpoint struct {
	fabric.Endpoint
	n *scribbled
}

func (n *scribbled) Open(provider string, src netip.Addr) (fabric.Endpoint, error) {
	ep, err := n.Network.Open(provider, src)
	return &scribbledEndpoint{ep, n}, err
}

func (e *scribbledEndpoint) Register(mem []byte, access pool.Access) (pool.Region, error) {
	r, err := e.Endpoint.Register(mem, access)
	if err != nil || access != pool.AccessRemoteWrite {
		return r, err
	}
	e.n.mu.Lock()
	defer e.n.mu.Unlock()
	w := &writable{r, e.n, mem}
	e.n.open = append(e.n.open, w)
	return w, nil
}

func (w *writable) Close() error {
	w.n.mu.Lock()
	w.n.open = slices.DeleteFunc(w.n.open, func(o *writable) bool { return o == w })
	w.n.mu.Unlock()
	return w.Region.Close()
}

// scribble changes every byte that a peer may write to.
func (n *scribbled) scribble() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, w := range n.open {
		for i := range w.mem {
			w.mem[i]++
		}
	}
}

type writerFunc func(b []byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// TestWriteToHostile: a sender that changes its ring after it has announced the data does not
// change what WriteTo has passed on, so that all readers of that read the same.
func TestWriteToHostile(t *testing.T) {
	for name, p := range map[string]simfabric.Personality{"tcp": simfabric.TCP(), "mapped": simfabric.Shm()} {
		t.Run(name, func(t *testing.T) {
			n := &scribbled{Network: simfabric.New(simfabric.Config{Personality: p})}
			tr := rdmanet.NewTransport(n)
			tr.ReceiveWindow = window
			rdmatest.Cleanly(t, tr)
			t.Cleanup(func() { assert.NoError(t, tr.Close()) })
			c, s := filled(t, tr)
			var stored bytes.Buffer
			hash := sha256.New()
			pieces := 0
			hostile := writerFunc(func(b []byte) (int, error) {
				pieces++
				n.scribble()
				return len(b), nil
			})
			_, err := s.WriteTo(io.MultiWriter(&stored, hostile, hash))
			require.NoError(t, err)
			sum := sha256.Sum256(stored.Bytes())
			assert.Equal(t, sum[:], hash.Sum(nil), "what is stored is what was hashed")
			assert.Positive(t, pieces)
			assert.Positive(t, s.Info().LargeReceived)
			rdmatest.CloseAll(t, c, s)
		})
	}
}

// waiting is how many bytes wait at one end of filled, and window how many of them do not have to
// be in the ring.
const waiting, window = 256 << 10, 64 << 10

// filled returns both ends of a conn on which bytes wait at s, most of them in its ring, and then
// the stream ends.
func filled(t *testing.T, tr *rdmanet.Transport) (c, s *rdmanet.Conn) {
	t.Helper()
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr})
	c, s = rdmatest.Meet(t, &rdmanet.Dialer{Transport: tr}, l)
	data := make([]byte, waiting)
	rand.Read(data)
	_, err := c.Write(data)
	require.NoError(t, err)
	require.NoError(t, c.CloseWrite())
	rdmatest.Eventually(t, func() bool {
		return slices.ContainsFunc(tr.Conns(), func(s rdmanet.ConnState) bool { return s.Unread == waiting })
	}, "all has landed")
	return c, s
}

// TestWriteToLends: destinations that read the bytes once, and keep them from everybody else, get them
// where they landed. A type that may do more with them does not, even if it contains one of these.
func TestWriteToLends(t *testing.T) {
	file := func(t *testing.T) *os.File {
		f, err := os.Create(filepath.Join(t.TempDir(), "file"))
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, f.Close()) })
		return f
	}
	for name, tt := range map[string]struct {
		to    func(t *testing.T, tr *rdmanet.Transport) io.Writer
		lends bool
	}{
		"file":    {func(t *testing.T, _ *rdmanet.Transport) io.Writer { return file(t) }, true},
		"discard": {func(*testing.T, *rdmanet.Transport) io.Writer { return io.Discard }, true},
		"tcp":     {func(t *testing.T, _ *rdmanet.Transport) io.Writer { return drainedTCP(t) }, true},
		"conn": {func(t *testing.T, tr *rdmanet.Transport) io.Writer {
			l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr})
			c, s := rdmatest.Meet(t, &rdmanet.Dialer{Transport: tr}, l)
			var drained sync.WaitGroup
			drained.Go(func() { _, _ = io.Copy(io.Discard, rdmatest.OnlyReader{Reader: s}) })
			t.Cleanup(func() {
				assert.NoError(t, c.CloseWrite())
				drained.Wait()
				rdmatest.CloseAll(t, c, s)
			})
			return c
		}, true},
		"around a file": {func(t *testing.T, _ *rdmanet.Transport) io.Writer { return struct{ *os.File }{file(t)} }, false},
		"several":       {func(t *testing.T, _ *rdmanet.Transport) io.Writer { return io.MultiWriter(file(t), sha256.New()) }, false},
		"buffer":        {func(*testing.T, *rdmanet.Transport) io.Writer { return new(bytes.Buffer) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			tr := simulated(t, simfabric.TCP())
			tr.ReceiveWindow = window
			to := tt.to(t, tr)
			c, s := filled(t, tr)
			before := tr.Stats().Providers[s.Info().Provider].Copies
			n, err := s.WriteTo(to)
			require.NoError(t, err)
			assert.EqualValues(t, waiting, n)
			assert.Equal(t, tt.lends, tr.Stats().Providers[s.Info().Provider].Copies.Lent > before.Lent)
			rdmatest.CloseAll(t, c, s)
		})
	}
}

// drainedTCP returns a conn whose peer reads all.
func drainedTCP(t *testing.T) net.Conn {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	s, err := l.Accept()
	require.NoError(t, err)
	var drained sync.WaitGroup
	drained.Go(func() { _, _ = io.Copy(io.Discard, s) })
	t.Cleanup(func() {
		assert.NoError(t, c.Close())
		drained.Wait()
		assert.NoError(t, s.Close())
	})
	return c
}
