package engine

import (
	"net/netip"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/pool"
)

// Mapped rings where descriptors, mappings or receives are short, or a peer uses them up.

// TestOutOfDescriptors: while descriptors are short no ring can be made that a peer could map. Large data
// goes in frames then, and no other endpoint hears that memory is short: its rings would be of no help.
func TestOutOfDescriptors(t *testing.T) {
	mappedLink(t, Config{}, func(t *testing.T, l *link) {
		a, b := l.dial(t)
		var limit syscall.Rlimit
		require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit))
		restore := func() { require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit)) }
		defer restore()
		require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Max: limit.Max}))
		for range 3 {
			inFrames(t, a, b)
		}
		assert.Zero(t, l.eb.core.cfg.Budget.Shortages())
		restore()
		time.Sleep(3 * choreTime)
		warmUp(t, a, b)
		assert.NotZero(t, b.Seen().LargeIn, "there is a ring again")
		resetConns(t, a, b)
	})
}

// TestLeasesOfNewMemory: a peer that makes new memory for each lease takes few of the mappings that all share.
func TestLeasesOfNewMemory(t *testing.T) {
	mappedLink(t, Config{}, func(t *testing.T, l *link) {
		a, b := l.dial(t)
		for range 3 * mostUnused {
			theirs, ring, err := sharedBlock(pool.MinBlock, l.b.local.Token)
			require.NoError(t, err)
			var payload [framing.LeaseSize]byte
			(&framing.Lease{Index: 1, Chunk: pool.MinBlock, Size: pool.MinBlock, Remote: framing.Remote{Key: ring.Shared.Inode, FD: ring.Shared.FD}}).Encode(payload[:])
			locked(l.ea, func() { require.NoError(t, a.stream.leased(payload[:])) })
			synctest.Wait()
			locked(l.ea, func() {
				assert.True(t, a.stream.copies())
				a.stream.revoked()
			})
			synctest.Wait()
			require.NoError(t, theirs.Close())
			require.LessOrEqual(t, len(l.a.p.mapped), mostUnused+2)
		}
		assert.LessOrEqual(t, l.ea.core.cfg.Budget.Stats().Foreign, int64(mostUnused+2)*pool.MinBlock)
		resetConns(t, a, b)
	})
}

// noRecvs is a fabric that takes no receives.
type noRecvs struct {
	fabric.Endpoint
	asked chan struct{}
	told  atomic.Bool
}

func (f *noRecvs) Exchange(ops []fabric.Op, done []fabric.Completion) (posted, reaped int, err error) {
	if i := slices.IndexFunc(ops, func(op fabric.Op) bool { return op.Kind == fabric.Recv }); i >= 0 {
		if f.told.CompareAndSwap(false, true) {
			close(f.asked)
		}
		ops = ops[:i]
	}
	return f.Endpoint.Exchange(ops, done)
}

// TestClosedWhileNewcomerWaits: an endpoint that is closed while a peer waits for its receives keeps nothing mapped.
func TestClosedWhileNewcomerWaits(t *testing.T) {
	for range 50 {
		fab, err := simfabric.New(simfabric.Config{Seed: 1, Personality: simfabric.Shm()}).Open(simfabric.Shm().Provider, netip.Addr{})
		require.NoError(t, err)
		f := &noRecvs{Endpoint: fab, asked: make(chan struct{})}
		b := pool.NewBudget(0)
		e, err := NewEndpoint(f, Config{Budget: b})
		require.NoError(t, err)
		ended := begin(func() error {
			_, err := e.NewPeer(PeerConfig{Memory: opens(b)})
			return err
		})
		<-f.asked
		require.NoError(t, e.Close())
		require.Error(t, <-ended)
		require.Zero(t, b.Stats().Used)
	}
}
