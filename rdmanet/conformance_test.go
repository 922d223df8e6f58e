package rdmanet_test

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/nettest"

	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// awkward returns the simulated fabrics that the suite runs over besides the real
// providers. They have each notification rule, local registration demanded, inject
// from 0 to 4096, queue depth down to 1, operations reordered, delayed and refused,
// and the rules of providers that need hardware.
func awkward() map[string]simfabric.Config {
	bad := func(p simfabric.Personality) simfabric.Config {
		return simfabric.Config{Seed: 3, Personality: p, Delay: 3, AgainRate: 0.05, CompletionReorder: true}
	}
	deep1 := func(p simfabric.Personality) simfabric.Config {
		p.TxDepth = 1
		return bad(p)
	}
	inject := simfabric.RuleCQData()
	inject.InjectSize = 4096
	all := map[string]simfabric.Config{
		"sim/cqdata":         bad(simfabric.RuleCQData()), // no inject, local registration
		"sim/cqdata/inject":  bad(inject),
		"sim/saw":            bad(simfabric.RuleSendAfterWrite()),
		"sim/deliver":        bad(simfabric.RuleDeliveryComplete()),
		"sim/cqdata/depth1":  deep1(simfabric.RuleCQData()),
		"sim/saw/depth1":     deep1(simfabric.RuleSendAfterWrite()),
		"sim/deliver/depth1": deep1(simfabric.RuleDeliveryComplete()),
	}
	for _, p := range personalities {
		all["sim/"+p.Provider] = bad(p)
	}
	all["sim/shm"] = simfabric.Config{Seed: 3, Personality: simfabric.Shm()}
	return all
}

// onFabrics runs a test over every awkward simulated fabric and every real
// provider, in this process.
func onFabrics(t *testing.T, test func(t *testing.T, pipe pipeFunc)) {
	t.Helper()
	for name, cfg := range awkward() {
		t.Run(name, func(t *testing.T) {
			provider := cfg.Provider
			if provider == "" {
				provider = "sim"
			}
			n := simfabric.New(cfg)
			tr := rdmanet.NewTransport(n)
			t.Cleanup(func() { assert.Empty(t, n.Stats().Misuse) }) // after Close
			rdmatest.Cleanly(t, tr)
			defer func() { assert.Zero(t, n.Stats().SendsWithoutReceive, "sends that found no receive posted") }()
			test(t, pipeOver(t, tr, provider))
		})
	}
	onProviders(t, test)
}

// onProviders runs a test over every real provider, in this process.
func onProviders(t *testing.T, test func(t *testing.T, pipe pipeFunc)) {
	t.Helper()
	rdmatest.Over(t, func(t *testing.T, tr *rdmanet.Transport, providers []string) { test(t, pipeOver(t, tr, providers[0])) })
}

// pipeFunc makes a connected pair of conns.
type pipeFunc func() (client, server *rdmanet.Conn)

func pipeOver(t *testing.T, tr *rdmanet.Transport, provider string) pipeFunc {
	t.Helper()
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr, Providers: []string{provider}})
	d := &rdmanet.Dialer{Transport: tr, Providers: []string{provider}, Timeout: rdmatest.Patience}
	return func() (client, server *rdmanet.Conn) {
		t.Helper()
		client, server = rdmatest.Meet(t, d, l)
		require.Equal(t, provider, client.Info().Provider)
		return client, server
	}
}

func TestConnNettest(t *testing.T) {
	onFabrics(t, testNettest)
}

// testNettest runs the suite of package nettest.
func testNettest(t *testing.T, pipe pipeFunc) {
	nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
		a, b := pipe()
		return a, b, func() {
			_ = a.Close()
			_ = b.Close()
		}, nil
	})
}

// testEach runs each test on conns of its own.
func testEach(t *testing.T, pipe pipeFunc, tests map[string]func(t *testing.T, a, b *rdmanet.Conn)) {
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			a, b := pipe()
			test(t, a, b)
			_ = a.Close()
			_ = b.Close()
		})
	}
}

// TestConnExpectations checks what users of net.Conn rely on and nettest does not
// check.
func TestConnExpectations(t *testing.T) {
	onFabrics(t, func(t *testing.T, pipe pipeFunc) {
		testEach(t, pipe, map[string]func(t *testing.T, a, b *rdmanet.Conn){
			"closed conn":          testClosed,
			"deadline before data": testDeadlineFirst,
			"instant wake":         testInstantWake,
			"empty calls":          testEmptyCalls,
			"empty calls as TCP":   testEmptyAsTCP,
			"longest linger":       testLongestLinger,
			"half close":           testHalfClose,
			"write to closed":      testWriteToClosed,
			"linger zero":          testLingerZero,
			"close read":           testCloseRead,
			"contiguous writes":    testContiguous,
			"partial write":        testPartialWrite,
			"addresses":            testAddresses,
			"copying":              testCopying,
			"no syscall conn":      testNoSyscallConn,
		})
		t.Run("ends as TCP", func(t *testing.T) { testEndsAsTCP(t, pipe) })
	})
}

func testClosed(t *testing.T, a, b *rdmanet.Conn) {
	require.NoError(t, a.Close())
	buf := make([]byte, 1)
	_, rerr := a.Read(buf)
	_, werr := a.Write(buf)
	for _, err := range []error{
		rerr, werr, a.Close(), a.CloseWrite(), a.CloseRead(), a.SetDeadline(time.Time{}),
		a.SetReadDeadline(time.Time{}), a.SetWriteDeadline(time.Time{}), a.SetLinger(1),
	} {
		require.ErrorIs(t, err, net.ErrClosed)
		var op *net.OpError
		require.ErrorAs(t, err, &op)
	}
	_, err := b.Read(buf)
	require.Equal(t, io.EOF, err) // bare
	require.NoError(t, b.Close())
}

func testDeadlineFirst(t *testing.T, a, b *rdmanet.Conn) {
	_, err := a.Write([]byte("data"))
	require.NoError(t, err)
	buf := make([]byte, 4)
	_, err = io.ReadFull(b, buf[:2])
	require.NoError(t, err)
	require.NoError(t, b.SetReadDeadline(time.Now().Add(-time.Second)))
	n, err := b.Read(buf)
	require.Zero(t, n)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	var ne net.Error
	require.ErrorAs(t, err, &ne)
	require.True(t, ne.Timeout())
	_, err = b.Write([]byte("x")) // the other direction is not affected
	require.NoError(t, err)
	require.NoError(t, b.SetReadDeadline(time.Time{}))
	_, err = io.ReadFull(b, buf[:2])
	require.NoError(t, err)
	require.Equal(t, "ta", string(buf[:2]))
}

// testInstantWake does to a pending Read what net/http does when a request ends.
func testInstantWake(t *testing.T, a, b *rdmanet.Conn) {
	for range 20 {
		read := make(chan error)
		go func() {
			_, err := b.Read(make([]byte, 1))
			read <- err
		}()
		time.Sleep(time.Millisecond) // the Read is usually pending by now
		start := time.Now()
		require.NoError(t, b.SetReadDeadline(time.Unix(1, 0)))
		require.ErrorIs(t, <-read, os.ErrDeadlineExceeded)
		require.Less(t, time.Since(start), time.Second)
		require.NoError(t, b.SetReadDeadline(time.Time{}))
	}
	_, err := a.Write([]byte("all"))
	require.NoError(t, err)
	buf := make([]byte, 3)
	_, err = io.ReadFull(b, buf)
	require.NoError(t, err)
	require.Equal(t, "all", string(buf))
}

func testEmptyCalls(t *testing.T, a, b *rdmanet.Conn) {
	n, err := a.Write(nil)
	require.NoError(t, err)
	require.Zero(t, n)
	n, err = b.Read(nil)
	require.NoError(t, err)
	require.Zero(t, n)
	_, err = a.Write([]byte("x"))
	require.NoError(t, err)
	n, err = b.Read(make([]byte, 2))
	require.NoError(t, err) // the empty Write was not taken for EOF
	require.Equal(t, 1, n)
}

func testHalfClose(t *testing.T, a, b *rdmanet.Conn) {
	request := bytes.Repeat([]byte("request "), 100_000)
	go func() {
		_, err := a.Write(request)
		assert.NoError(t, err)
		assert.NoError(t, a.CloseWrite())
	}()
	got, err := io.ReadAll(b)
	require.NoError(t, err)
	require.True(t, bytes.Equal(request, got))
	_, err = a.Write([]byte("x"))
	require.ErrorIs(t, err, syscall.EPIPE)
	_, err = b.Write([]byte("answer"))
	require.NoError(t, err)
	require.NoError(t, b.CloseWrite())
	got, err = io.ReadAll(a)
	require.NoError(t, err)
	require.Equal(t, "answer", string(got))
}

func testWriteToClosed(t *testing.T, a, b *rdmanet.Conn) {
	require.NoError(t, b.Close())
	var err error
	require.Eventually(t, func() bool {
		_, err = a.Write([]byte("x"))
		return err != nil
	}, rdmatest.Patience, time.Millisecond)
	require.True(t, errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET), "%v", err)
}

func testLingerZero(t *testing.T, a, b *rdmanet.Conn) {
	require.NoError(t, a.SetLinger(0))
	require.NoError(t, a.Close())
	_, err := b.Read(make([]byte, 1))
	require.ErrorIs(t, err, syscall.ECONNRESET)
}

func testCloseRead(t *testing.T, a, b *rdmanet.Conn) {
	require.NoError(t, b.CloseRead())
	_, err := b.Read(make([]byte, 1))
	require.Equal(t, io.EOF, err)
	_, err = a.Write(make([]byte, 4<<20)) // more than any window holds: it is discarded
	require.NoError(t, err)
}

// testContiguous: the bytes of each Write stay together, even if Writes are concurrent.
func testContiguous(t *testing.T, a, b *rdmanet.Conn) {
	const writers, rounds, size = 4, 20, 20_000
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			block := bytes.Repeat([]byte{byte('a' + w)}, size)
			for range rounds {
				_, err := a.Write(block)
				assert.NoError(t, err)
			}
		})
	}
	block := make([]byte, size)
	for range writers * rounds {
		_, err := io.ReadFull(b, block)
		require.NoError(t, err)
		require.Equal(t, size, bytes.Count(block, block[:1]), "writes are mixed")
	}
	wg.Wait()
}

// testPartialWrite: a Write that times out returns how much it has sent, and the next
// Write continues the stream there.
func testPartialWrite(t *testing.T, a, b *rdmanet.Conn) {
	data := make([]byte, 16<<20)
	_, _ = rand.Read(data)
	n := 0
	for try := 0; n == 0 && try < 20; try++ { // on a busy machine the deadline may pass before anything is sent
		require.NoError(t, a.SetWriteDeadline(time.Now().Add(50*time.Millisecond)))
		var err error
		n, err = a.Write(data)
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.Less(t, n, len(data))
	}
	require.Positive(t, n)
	got := make([]byte, n)
	_, err := io.ReadFull(b, got)
	require.NoError(t, err)
	require.True(t, bytes.Equal(data[:n], got))
	require.NoError(t, a.SetWriteDeadline(time.Time{}))
	_, err = a.Write([]byte("next"))
	require.NoError(t, err)
	_, err = io.ReadFull(b, got[:4])
	require.NoError(t, err)
	require.Equal(t, "next", string(got[:4]))
}

func testAddresses(t *testing.T, a, b *rdmanet.Conn) {
	require.Equal(t, "tcp", a.RemoteAddr().Network())
	for _, addr := range []net.Addr{a.LocalAddr(), a.RemoteAddr(), b.LocalAddr(), b.RemoteAddr()} {
		_, _, err := net.SplitHostPort(addr.String())
		require.NoError(t, err)
	}
	require.Equal(t, a.RemoteAddr().String(), b.LocalAddr().String())
	require.Equal(t, a.LocalAddr().String(), b.RemoteAddr().String())
	remote := a.RemoteAddr().String()
	require.NoError(t, a.Close())
	require.Equal(t, remote, a.RemoteAddr().String())
}

// testCopying: ReadFrom, WriteTo and WriteBuffers move the same bytes as Write
// and Read.
func testCopying(t *testing.T, a, b *rdmanet.Conn) {
	data := make([]byte, 3_000_001)
	_, _ = rand.Read(data)
	go func() {
		n, err := a.ReadFrom(bytes.NewReader(data))
		assert.NoError(t, err)
		assert.EqualValues(t, len(data), n)
		v := net.Buffers{data[:10], data[10:100_000], nil, data[100_000:100_001]}
		n, err = a.WriteBuffers(&v)
		assert.NoError(t, err)
		assert.EqualValues(t, 100_001, n)
		assert.NoError(t, a.CloseWrite())
	}()
	var got bytes.Buffer
	n, err := b.WriteTo(&got)
	require.NoError(t, err)
	require.EqualValues(t, len(data)+100_001, n)
	require.True(t, bytes.Equal(got.Bytes(), append(bytes.Clone(data), data[:100_001]...)))
}

func testNoSyscallConn(t *testing.T, a, _ *rdmanet.Conn) {
	_, ok := net.Conn(a).(syscall.Conn)
	require.False(t, ok, "others would take the file descriptor and peek at it")
}

// TestBothWrite: both sides write 64 MiB (8 over simulated fabrics) at the same time, and
// neither reads until both have timed out. Write blocks for lack of credit and honours its
// deadline, and both streams arrive whole once they are read.
func TestBothWrite(t *testing.T) {
	both := func(t *testing.T, pipe pipeFunc, size int) {
		a, b := pipe()
		data := make([]byte, size)
		_, _ = rand.Read(data)
		conns := [2]*rdmanet.Conn{a, b}
		var wrote [2]int
		var wg sync.WaitGroup
		for i, c := range conns {
			wg.Go(func() {
				assert.NoError(t, c.SetWriteDeadline(time.Now().Add(300*time.Millisecond)))
				start := time.Now()
				n, err := c.Write(data)
				assert.ErrorIs(t, err, os.ErrDeadlineExceeded)
				assert.Less(t, time.Since(start), 5*time.Second)
				assert.Less(t, n, len(data))
				wrote[i] = n
				assert.NoError(t, c.SetWriteDeadline(time.Time{}))
			})
		}
		wg.Wait()
		for i, c := range conns {
			wg.Go(func() {
				_, err := c.Write(data[wrote[i]:])
				assert.NoError(t, err)
				assert.NoError(t, c.CloseWrite())
			})
			wg.Go(func() {
				got, err := io.ReadAll(c)
				assert.NoError(t, err)
				assert.True(t, bytes.Equal(data, got), "%d bytes arrived", len(got))
			})
		}
		wg.Wait()
		rdmatest.CloseAll(t, a, b)
	}
	onPersonalities(t, func(t *testing.T, tr *rdmanet.Transport, providers []string) {
		both(t, pipeOver(t, tr, providers[0]), 8<<20)
	})
	onProviders(t, func(t *testing.T, pipe pipeFunc) { both(t, pipe, 64<<20) })
}

// TestTransfer moves a gibibyte. The control connection carries next to nothing of it,
// and nearly all of it arrives by RDMA write, as counted at the receiver.
func TestTransfer(t *testing.T) {
	const total, size = 1 << 30, 64 << 10
	for _, provider := range rdmatest.Providers {
		t.Run(provider, func(t *testing.T) {
			tr := new(rdmanet.Transport)
			rdmatest.Cleanly(t, tr)
			a, b := pipeOver(t, tr, provider)()
			before := tr.Stats()
			go func() {
				buf := make([]byte, size)
				for range total / size {
					if _, err := a.Write(buf); !assert.NoError(t, err) {
						break
					}
				}
				assert.NoError(t, a.CloseWrite())
			}()
			n, err := io.CopyBuffer(rdmatest.OnlyWriter{Writer: io.Discard}, rdmatest.OnlyReader{Reader: b}, make([]byte, 256<<10))
			require.NoError(t, err)
			require.EqualValues(t, total, n)
			after := tr.Stats()
			// Both ends are in this process: this Transport sends and receives everything.
			assert.Less(t, after.ControlSent+after.ControlReceived-before.ControlSent-before.ControlReceived, uint64(64<<10))
			info := b.Info()
			assert.EqualValues(t, total, info.LargeReceived+info.SmallReceived)
			assert.GreaterOrEqual(t, info.LargeReceived, uint64(total/100*95), "bytes by RDMA write")
			rdmatest.CloseAll(t, a, b)
		})
	}
}
