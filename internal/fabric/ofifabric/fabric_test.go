//go:build linux && cgo

package ofifabric_test

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/internal/fabric/ofifabric"
	"github.com/seed202c38ff/fabricnet/internal/shmdir"
	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/seed202c38ff/fabricnet/pool"
)

func TestProviders(t *testing.T) {
	infos, err := ofifabric.New().Providers(loopback)
	require.NoError(t, err)
	found := make(map[string]fabric.ProviderInfo)
	for _, info := range infos {
		name := fabric.Join(info.Name, info.Domain)
		assert.NotContains(t, found, name)
		found[name] = info
		if !info.Elsewhere {
			assert.NotContains(t, found, info.Name, "two for one address")
			found[info.Name] = info
		}
		assert.NotEmpty(t, info.Library)
		assert.Equal(t, info.Name == "shm", info.PerPeer)
		assert.Equal(t, info.Name == "shm", info.SameHost)
	}
	for _, name := range providers {
		require.Contains(t, found, name)
		attr := open(t, name).Attr()
		assert.Equal(t, found[name].Protocol, attr.Protocol)
		assert.Equal(t, found[name].ProtocolVersion, attr.ProtocolVersion)
		assert.Equal(t, name, attr.Provider)
		assert.Equal(t, found[name].Domain, attr.Domain)
		assert.Positive(t, attr.TxDepth)
		assert.Positive(t, attr.RxDepth)
		assert.NotZero(t, attr.Order&fabric.SendAfterSend)
	}
}

func TestOpenOnIPv6(t *testing.T) {
	for _, provider := range testenv.Shared() {
		six, err := ofifabric.New().Open(provider, netip.IPv6Loopback())
		require.NoError(t, err)
		defer six.Close()
		_, err = six.Insert(open(t, provider).Name())
		assert.Error(t, err, "an IPv4 name in an IPv6 address vector")
		_, err = six.Insert(six.Name())
		assert.NoError(t, err)
	}
}

func TestOpenErrors(t *testing.T) {
	_, err := ofifabric.New().Open("nonesuch", loopback)
	require.ErrorIs(t, err, fabric.ErrNoProvider)
	assert.ErrorContains(t, err, "nonesuch")

	_, err = ofifabric.New().Open(testenv.Native, netip.MustParseAddr("198.51.100.7"))
	require.ErrorIs(t, err, fabric.ErrNoProvider)
	assert.ErrorContains(t, err, "198.51.100.7")
}

func TestInsertRefusesGarbage(t *testing.T) {
	for _, provider := range providers {
		ep := open(t, provider)
		for _, name := range [][]byte{
			nil, {}, {1}, []byte("fi_shm://"), []byte("fi_shm://../etc/passwd"),
			[]byte(strings.Repeat("x", 4096)), append([]byte("fi_shm://"), make([]byte, 300)...),
			ep.Name()[:len(ep.Name())/4],
		} {
			_, err := ep.Insert(name)
			assert.Error(t, err, "%s: %q", provider, name)
		}
	}
}

func TestUnlink(t *testing.T) {
	before := regions(t)
	a, b := pair(t, "shm")
	assert.Len(t, regions(t), len(before)+2)
	in := mapped(t, 4096)
	exchange := func() {
		b.post(a, fabric.Op{Kind: fabric.Recv, Buf: in[:64]})
		a.post(b, fabric.Op{Kind: fabric.Inject, To: a.peer, Buf: outside(t, "hello")})
		require.NoError(t, b.await(a, fabric.Recv).Err)
	}
	exchange()
	for _, s := range []*side{a, b} {
		unlinker, ok := s.Endpoint.(interface{ Unlink() error })
		require.True(t, ok)
		require.NoError(t, unlinker.Unlink())
		require.NoError(t, unlinker.Unlink())
	}
	assert.ElementsMatch(t, before, regions(t))
	exchange()
}

// regions lists this process's shared memory, by names that contain the process number.
func regions(t *testing.T) []string {
	t.Helper()
	own := fmt.Sprintf(".%d-", os.Getpid())
	return slices.DeleteFunc(shmNames(t), func(name string) bool { return !strings.Contains(name, own) })
}

// shmNames lists all names in /dev/shm.
func shmNames(t *testing.T) (names []string) {
	t.Helper()
	list, err := os.ReadDir(shmdir.Dir)
	require.NoError(t, err)
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

// Posting stops at the provider's depth without an error, goes on once there
// are completions, and loses nothing.
func TestBatchBeyondTheQueue(t *testing.T) {
	eachProvider(t, func(t *testing.T, a, b *side) {
		in := mapped(t, 1<<16)
		region := b.register(in, pool.AccessLocal)
		depth := b.Attr().RxDepth
		recvs := make([]fabric.Op, 2*depth)
		for i := range recvs {
			recvs[i] = fabric.Op{Kind: fabric.Recv, Buf: in[:64], Desc: region.Desc(), Tag: uint32(i)}
		}
		n, _, err := b.Exchange(recvs, nil)
		require.NoError(t, err)
		require.LessOrEqual(t, n, depth)
		require.Positive(t, n)
		injects := make([]fabric.Op, n)
		for i := range injects {
			injects[i] = fabric.Op{Kind: fabric.Inject, To: a.peer, Buf: outside(t, "message")}
		}
		a.post(b, injects...)
		seen := make(map[uint32]bool)
		for range n {
			c := b.await(a, fabric.Recv)
			require.NoError(t, c.Err)
			require.Equal(t, 7, c.Len)
			require.False(t, seen[c.Tag])
			seen[c.Tag] = true
		}
		b.post(a, recvs[n])
	})
}

// A receive whose buffer is too small fails with its tag, and the endpoint goes
// on working. tcp;ofi_rxm drops such a message without a completion, and
// udp;ofi_rxd truncates it without an error.
func TestErrorCompletion(t *testing.T) {
	for _, provider := range []string{"shm", testenv.Native} {
		t.Run(provider, func(t *testing.T) {
			a, b := pair(t, provider)
			in := mapped(t, 4096)
			b.post(a, fabric.Op{Kind: fabric.Recv, Buf: in[:4], Tag: 5})
			a.post(b, fabric.Op{Kind: fabric.Inject, To: a.peer, Buf: outside(t, "too long for it")})
			c := b.await(a, fabric.Recv)
			require.Error(t, c.Err)
			assert.EqualValues(t, 5, c.Tag)

			b.post(a, fabric.Op{Kind: fabric.Recv, Buf: in[:64], Tag: 6})
			a.post(b, fabric.Op{Kind: fabric.Inject, To: a.peer, Buf: outside(t, "this fits")})
			c = b.await(a, fabric.Recv)
			require.NoError(t, c.Err)
			assert.EqualValues(t, 6, c.Tag)
		})
	}
}

func TestBadOperation(t *testing.T) {
	a, _ := pair(t, "shm")
	for _, kind := range []fabric.Kind{0, fabric.RemoteWrite, 200} {
		n, _, err := a.Exchange([]fabric.Op{
			{Kind: fabric.Recv, Buf: mapped(t, 4096)}, {Kind: kind, Buf: make([]byte, 1)},
		}, nil)
		assert.Equal(t, 1, n)
		assert.Error(t, err)
	}
}

// A peer can be removed when half of one of its writes has arrived. With completion data
// tcp;ofi_rxm would crash, which is why none is used there: see cqDataSize.
func TestHalfAWrite(t *testing.T) {
	const size = 64 << 20
	for _, provider := range testenv.Shared() {
		t.Run(provider, func(t *testing.T) {
			a, b := pair(t, provider)
			kind := fabric.Write
			if b.Attr().CQDataSize >= 4 {
				kind = fabric.WriteData
			}
			from, to := mapped(t, size), mapped(t, size)
			from[0], from[size-1] = 1, 1
			target := b.register(to, pool.AccessRemoteWrite)
			a.post(b, fabric.Op{
				Kind: kind, To: a.peer, Buf: from, Desc: a.register(from, pool.AccessLocal).Desc(),
				Remote: target.Base(), Key: target.Key(),
			})
			for begin := time.Now(); to[0] == 0; {
				require.Less(t, time.Since(begin), timeout)
				a.poll()
				b.poll()
			}
			require.Zero(t, to[size-1])
			require.NoError(t, b.Remove(b.peer))
			var done [8]fabric.Completion
			for range 10 {
				_, _, _ = b.Exchange(nil, done[:])
			}
		})
	}
}
