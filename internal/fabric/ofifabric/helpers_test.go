//go:build linux && cgo

package ofifabric_test

import (
	"net/netip"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/internal/fabric/ofifabric"
	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/seed202c38ff/fabricnet/pool"
)

// timeout bounds each wait for something that must happen.
const timeout = 10 * time.Second

var loopback = netip.MustParseAddr(testenv.Host())

// providers are the providers that this libfabric must have.
var providers = append(testenv.Providers(), "udp;ofi_rxd")

// mapped returns memory outside the Go heap.
func mapped(t testing.TB, size int) []byte {
	mem, err := syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE,
		syscall.MAP_ANON|syscall.MAP_PRIVATE|syscall.MAP_POPULATE)
	require.NoError(t, err)
	t.Cleanup(func() { _ = syscall.Munmap(mem) })
	return mem
}

// outside returns the text in memory outside the Go heap.
func outside(t testing.TB, text string) []byte {
	mem := mapped(t, len(text))
	copy(mem, text)
	return mem
}

// side is one of two connected endpoints.
type side struct {
	fabric.Endpoint
	t    testing.TB
	peer fabric.Addr
	got  []fabric.Completion // reaped, but not yet asked for
}

// open opens an endpoint that is closed at the end of the test.
func open(t testing.TB, provider string) *side {
	ep, err := ofifabric.New().Open(provider, loopback)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ep.Close()) })
	return &side{Endpoint: ep, t: t}
}

// pair opens two endpoints that know each other.
func pair(t testing.TB, provider string) (a, b *side) {
	a, b = open(t, provider), open(t, provider)
	var err error
	a.peer, err = a.Insert(b.Name())
	require.NoError(t, err)
	b.peer, err = b.Insert(a.Name())
	require.NoError(t, err)
	return a, b
}

// register registers memory until the end of the test. It is deregistered before the
// endpoint is closed.
func (s *side) register(mem []byte, access pool.Access) pool.Region {
	r, err := s.Register(mem, access)
	require.NoError(s.t, err)
	s.t.Cleanup(func() { require.NoError(s.t, r.Close()) })
	return r
}

// poll reaps the completions that are there.
func (s *side) poll() {
	var done [8]fabric.Completion
	_, n, err := s.Exchange(nil, done[:])
	require.NoError(s.t, err)
	s.got = append(s.got, done[:n]...)
}

// post posts all of ops, reaping on both sides while a queue is full.
func (s *side) post(other *side, ops ...fabric.Op) {
	deadline := time.Now().Add(timeout)
	for len(ops) > 0 {
		n, _, err := s.Exchange(ops, nil)
		require.NoError(s.t, err)
		ops = ops[n:]
		if len(ops) > 0 {
			require.True(s.t, time.Now().Before(deadline), "cannot post")
			s.poll()
			other.poll()
			runtime.Gosched()
		}
	}
}

// await returns the first completion of the kind, driving both sides.
func (s *side) await(other *side, kind fabric.Kind) fabric.Completion {
	s.t.Helper()
	deadline := time.Now().Add(timeout)
	for {
		for i, c := range s.got {
			if c.Kind == kind {
				s.got = append(s.got[:i], s.got[i+1:]...)
				return c
			}
		}
		require.True(s.t, time.Now().Before(deadline), "no completion of kind %d in %v; the other side has %v", kind, s.got, other.got)
		s.poll()
		other.poll()
		runtime.Gosched()
	}
}

// eachProvider runs a test with two connected endpoints over every provider.
func eachProvider(t *testing.T, test func(t *testing.T, a, b *side)) {
	for _, name := range providers {
		t.Run(name, func(t *testing.T) {
			a, b := pair(t, name)
			test(t, a, b)
		})
	}
}
