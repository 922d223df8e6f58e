package pool

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func grant(t *testing.T, table *Leases, l *Arena) *Lease {
	t.Helper()
	ring, err := l.Alloc(MinBlock)
	require.NoError(t, err)
	lease, err := table.Grant(ring, l)
	require.NoError(t, err)
	return lease
}

func TestLeaseHandshake(t *testing.T) {
	l := NewArena(NewBudget(0), newDomain(), AccessRemoteWrite, 1<<20)
	var table Leases
	lease := grant(t, &table, l)
	assert.Same(t, lease, table.Lookup(lease.Index))
	assert.Same(t, l, lease.Owner)
	assert.Nil(t, table.Lookup(lease.Index+1))
	assert.False(t, table.Drop(lease))

	lease.Release(100)
	lease.Release(50)
	assert.EqualValues(t, 100, lease.released, "never back")
	assert.True(t, lease.Revoke())
	assert.False(t, lease.Revoke())
	assert.Equal(t, LeaseRevoking, lease.State())
	assert.False(t, table.Drop(lease))

	require.ErrorIs(t, lease.Return(99), ErrReturn, "less than released")
	require.ErrorIs(t, lease.Return(100+MinBlock+1), ErrReturn, "more than granted")
	require.NoError(t, lease.Return(300))
	require.NoError(t, lease.Return(300))
	require.ErrorIs(t, lease.Return(301), ErrReturn)
	assert.False(t, lease.Revoke())
	assert.False(t, table.Drop(lease), "200 bytes are not read yet")
	lease.Release(400)
	assert.EqualValues(t, 300, lease.released, "never past the end")
	assert.True(t, lease.Drained())

	assert.True(t, table.Drop(lease))
	assert.False(t, table.Drop(lease))
	table.ForceDrop(lease)
	assert.Nil(t, table.Lookup(lease.Index))
	assert.Zero(t, l.Stats().Blocks)
	assert.Equal(t, LeaseStats{Granted: 1}, table.Stats())
	require.ErrorIs(t, lease.Return(300), ErrReturn)
	require.NoError(t, l.Close())
}

func TestLeaseForceDrop(t *testing.T) {
	b := NewBudget(0)
	l := NewArena(b, newDomain(), AccessRemoteWrite, 1<<20)
	var table Leases
	first, second := grant(t, &table, l), grant(t, &table, l)
	table.ForceDrop(first)
	table.ForceDrop(first)
	require.NoError(t, l.Deregister())
	table.ForceDrop(second)
	assert.Equal(t, LeaseStats{Granted: 2, Forced: 2}, table.Stats())
	assert.NotZero(t, b.Stats().Used, "quarantined")
	require.NoError(t, l.Close())
	assert.Zero(t, b.Stats().Used)
}

func TestLeaseIndices(t *testing.T) {
	l := NewArena(NewBudget(0), newDomain(), AccessRemoteWrite, MinBlock)
	ring, err := l.Alloc(MinBlock)
	require.NoError(t, err)
	var table Leases
	leases := make([]*Lease, MaxLeases)
	for i := range leases {
		leases[i], err = table.Grant(ring, nil)
		require.NoError(t, err)
		require.EqualValues(t, i, leases[i].Index)
	}
	_, err = table.Grant(ring, nil)
	require.ErrorIs(t, err, ErrLeases)
	for _, i := range []int{7, 3} { // all leases have the same ring: make it look allocated, since each frees it
		ring.arena = l
		l.blocks, ring.slab.buddy = 1, newBuddy(1)
		table.ForceDrop(leases[i])
	}
	for _, i := range []int{7, 3} {
		lease, err := table.Grant(ring, nil)
		require.NoError(t, err)
		require.EqualValues(t, i, lease.Index, "first in, first out")
	}
	require.NoError(t, l.Close())
}

// In whatever order leases are granted, released and dropped, a ring that the peer may still
// write to is never handed out again.
func TestLeaseRandom(t *testing.T) {
	b := NewBudget(1 << 20)
	l := NewArena(b, newDomain(), AccessRemoteWrite, 1<<20)
	rng := rand.New(rand.NewPCG(3, 4))
	var table Leases
	owner := make(map[*byte]*Lease) // by the ring's first byte
	var leases []*Lease
	for range 6000 {
		if len(leases) == 0 || rng.IntN(4) == 0 {
			ring, err := l.Alloc(MinBlock)
			if err != nil {
				require.ErrorIs(t, err, ErrBudget)
			} else {
				before := owner[&ring.Bytes[0]]
				require.True(t, before == nil || before.State() == LeaseDropped, "ring is still out")
				lease, err := table.Grant(ring, nil)
				require.NoError(t, err)
				owner[&ring.Bytes[0]] = lease
				leases = append(leases, lease)
				continue
			}
		}
		i := rng.IntN(len(leases))
		lease := leases[i]
		released, state := lease.released, lease.State()
		switch rng.IntN(4) {
		case 0:
			lease.Revoke()
		case 1:
			_ = lease.Return(uint64(rng.IntN(1000)))
		case 2:
			lease.Release(uint64(rng.IntN(1000)))
		case 3:
			drained := lease.State() == LeaseReturned && lease.released == lease.final
			require.Equal(t, drained, table.Drop(lease))
			if drained {
				leases = append(leases[:i], leases[i+1:]...)
			}
		}
		require.GreaterOrEqual(t, lease.released, released)
		require.GreaterOrEqual(t, lease.State(), state)
		require.Equal(t, len(leases), table.Stats().Out)
		require.Equal(t, len(leases), l.Stats().Blocks)
	}
	assert.Greater(t, table.Stats().Granted, uint64(50))
	require.NoError(t, l.Close())
	assert.Zero(t, b.Stats().Used)
}

func BenchmarkLease(b *testing.B) {
	l := NewArena(NewBudget(0), newDomain(), AccessRemoteWrite, 1<<20)
	var table Leases
	b.ReportAllocs()
	for b.Loop() {
		ring, err := l.Alloc(MinBlock)
		if err != nil {
			b.Fatal(err)
		}
		lease, err := table.Grant(ring, nil)
		if err != nil || lease.Return(0) != nil || !table.Drop(lease) {
			b.Fatal("lease not returned")
		}
	}
	require.NoError(b, l.Close())
}
