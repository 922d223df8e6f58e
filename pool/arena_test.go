package pool

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Alloc is Get, with a further slab if it takes one.
func (a *Arena) Alloc(size int) (*Block, error) {
	if b := a.Get(size); b != nil {
		return b, nil
	}
	slab, err := a.Map(a.slabSize)
	if err != nil {
		return nil, err
	}
	a.Add(slab)
	return a.Get(size), nil
}

// landing is an arena of rings.
func landing(slabSize int) (*Arena, *Budget, *domain) {
	b, d := NewBudget(0), newDomain()
	return NewArena(b, d, AccessRemoteWrite, slabSize), b, d
}

// alloc returns n blocks of one size.
func alloc(t *testing.T, a *Arena, size, n int) (blocks []*Block) {
	t.Helper()
	for range n {
		b, err := a.Alloc(size)
		require.NoError(t, err)
		blocks = append(blocks, b)
	}
	return blocks
}

func TestLandingSizes(t *testing.T) {
	l, _, _ := landing(1 << 20)
	for size, want := range map[int]int{1: MinBlock, MinBlock: MinBlock, MinBlock + 1: 2 * MinBlock, 1 << 20: 1 << 20} {
		r := alloc(t, l, size, 1)[0]
		assert.Len(t, r.Bytes, want)
		assert.Equal(t, want, cap(r.Bytes))
	}
	for _, size := range []int{0, -1, 1<<20 + 1} {
		assert.Nil(t, l.Get(size), size)
	}
	require.NoError(t, l.Close())
	for _, size := range []int{0, MinBlock / 2, 3 * MinBlock} {
		assert.Panics(t, func() { NewArena(nil, nil, AccessLocal, size) })
	}
}

// Rings are aligned, lie within one region that the peer may write to, and never overlap. The budget gets everything back.
func TestLandingRandom(t *testing.T) {
	const slabSize = 1 << 20
	b, d := NewBudget(8*slabSize), newDomain()
	l := NewArena(b, d, AccessRemoteWrite, slabSize)
	rng := rand.New(rand.NewPCG(1, 2))
	live := make(map[*Block]byte)
	var inUse int64
	refused := 0
	for i := range 5000 {
		if rng.IntN(100) < 55 {
			r, err := l.Alloc(1 + rng.IntN(slabSize/2))
			if err != nil {
				require.ErrorIs(t, err, ErrBudget)
				refused++
				continue
			}
			checkRing(t, d, r)
			live[r] = byte(i)
			mark(r, byte(i))
			inUse += int64(len(r.Bytes))
		} else {
			for r, m := range live {
				require.Equal(t, [3]byte{m, m, m}, marked(r), "rings overlap")
				delete(live, r)
				inUse -= int64(len(r.Bytes))
				l.Free(r)
				break
			}
		}
		require.Equal(t, inUse, l.Stats().InUse)
		require.Equal(t, len(live), l.Stats().Blocks)
		require.Equal(t, l.Stats().Mapped, b.Stats().Used)
	}
	assert.Positive(t, refused, "the budget was never full")
	for r, m := range live {
		require.Equal(t, [3]byte{m, m, m}, marked(r), "rings overlap")
		l.Free(r)
	}
	require.Greater(t, l.Stats().Slabs, 1)
	closeAll(t, l.Trim(1))
	assert.Equal(t, ArenaStats{Slabs: 1, Mapped: slabSize}, l.Stats(), "one free slab is kept")
	assert.EqualValues(t, slabSize, b.Stats().Used)
	r := alloc(t, l, slabSize, 1)[0] // free runs have merged
	require.Equal(t, 1, l.Stats().Slabs)
	l.Free(r)
	assert.Panics(t, func() { l.Free(r) })
	closeAll(t, l.Trim(0))
	assert.Zero(t, b.Stats().Used)
	assert.Empty(t, d.regions)
}

func checkRing(t *testing.T, d *domain, r *Block) {
	t.Helper()
	require.Zero(t, address(r.Bytes)%Align)
	require.True(t, within(d, r.Bytes, uintptr(r.Key), AccessRemoteWrite))
	for reg := range d.regions {
		if reg.key == r.Key {
			require.EqualValues(t, r.Addr, address(r.Bytes)-address(reg.mem)+uintptr(reg.Base()))
		}
	}
}

// mark writes m to both ends and the middle of the ring. marked reads that back.
func mark(r *Block, m byte) { r.Bytes[0], r.Bytes[len(r.Bytes)/2], r.Bytes[len(r.Bytes)-1] = m, m, m }

func marked(r *Block) [3]byte {
	return [3]byte{r.Bytes[0], r.Bytes[len(r.Bytes)/2], r.Bytes[len(r.Bytes)-1]}
}

func TestLandingQuarantine(t *testing.T) {
	l, b, d := landing(MinBlock)
	rings := alloc(t, l, MinBlock, 3)
	d.stuck = errTest
	require.ErrorIs(t, l.Deregister(), errTest)
	d.stuck = nil
	require.NoError(t, l.Deregister())
	assert.Empty(t, d.regions)
	assert.Nil(t, l.Get(MinBlock))
	for _, r := range rings {
		l.Free(r)
		r.Bytes[0] = 1 // still mapped
	}
	assert.Empty(t, l.Trim(0))
	assert.Panics(t, func() { l.Add(new(Slab)) })
	assert.EqualValues(t, 3*MinBlock, b.Stats().Used)
	require.NoError(t, l.Close())
	require.NoError(t, l.Close())
	assert.Zero(t, b.Stats().Used)
}

func TestLandingStuck(t *testing.T) {
	l, b, d := landing(MinBlock)
	r := alloc(t, l, MinBlock, 1)[0]
	l.Free(r)
	d.stuck = errTest
	empty := l.Trim(0)
	require.Len(t, empty, 1)
	require.ErrorIs(t, empty[0].Close(), errTest)
	l.Add(empty[0]) // the slab can be used as before
	again := l.Get(1)
	require.Equal(t, r.Addr, again.Addr)
	l.Free(again)
	require.ErrorIs(t, l.Close(), errTest)
	assert.Equal(t, 1, l.Stats().Slabs, "memory that the peer can reach stays mapped")
	d.stuck = nil
	require.NoError(t, l.Close())
	assert.Zero(t, b.Stats().Used)
}

func closeAll(t *testing.T, slabs []*Slab) {
	t.Helper()
	for _, s := range slabs {
		require.NoError(t, s.Close())
	}
}

// Get only hands out memory that has been added. Map touches nothing that other calls use.
func TestLandingGet(t *testing.T) {
	b := NewBudget(2 * MinBlock)
	a := NewArena(b, newDomain(), AccessRemoteWrite, MinBlock)
	defer func() { require.NoError(t, a.Close()) }()
	assert.Nil(t, a.Get(1))
	slab, err := a.Map(a.slabSize)
	require.NoError(t, err)
	assert.Nil(t, a.Get(1))
	a.Add(slab)
	for _, size := range []int{0, -1, MinBlock + 1} {
		assert.Nil(t, a.Get(size), size)
	}
	block := a.Get(1)
	require.Len(t, block.Bytes, MinBlock)
	assert.Nil(t, a.Get(1))
	a.Free(block)
	require.NoError(t, b.Reserve(1))
	_, err = a.Map(a.slabSize)
	require.ErrorIs(t, err, ErrBudget)
	b.Release(1)
	require.NoError(t, a.Deregister())
	assert.Nil(t, a.Get(1))
}

func TestBuddyFit(t *testing.T) {
	b := newBuddy(8)
	for _, block := range [][2]int{{2, 0}, {1, 2}, {4, 4}} {
		at, ok := b.alloc(block[0])
		assert.True(t, ok)
		assert.Equal(t, block[1], at, "the tighter fit, not the other half")
	}
	_, ok := b.alloc(2)
	assert.False(t, ok, "one block is left")
	b.free(2, 1)
	b.free(4, 4)
	assert.False(t, b.empty())
	b.free(0, 2)
	assert.True(t, b.empty())
}

func BenchmarkLanding(b *testing.B) {
	l, _, _ := landing(4 << 20)
	b.ReportAllocs()
	for b.Loop() {
		r, err := l.Alloc(1 << 20)
		if err != nil {
			b.Fatal(err)
		}
		l.Free(r)
	}
	require.NoError(b, l.Close())
}
