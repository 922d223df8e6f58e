package pool

import (
	"errors"
	"os"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// domain is a Registrar that keeps a record of what is registered.
type domain struct {
	regions map[*region]bool
	next    uint64
	fail    error // of Register
	stuck   error // of Region.Close
}

type region struct {
	domain *domain
	mem    []byte
	access Access
	key    uint64
}

func newDomain() *domain { return &domain{regions: make(map[*region]bool)} }

func (d *domain) Register(mem []byte, access Access) (Region, error) {
	if d.fail != nil {
		return nil, d.fail
	}
	d.next++
	r := &region{domain: d, mem: mem, access: access, key: d.next}
	d.regions[r] = true
	return r, nil
}

func (r *region) Desc() uintptr { return uintptr(r.key) }
func (r *region) Key() uint64   { return r.key }
func (r *region) Base() uint64  { return uint64(address(r.mem)) }
func (r *region) Close() error {
	if r.domain.stuck != nil {
		return r.domain.stuck
	}
	delete(r.domain.regions, r)
	return nil
}

func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

var errTest = errors.New("test")

func TestBudget(t *testing.T) {
	assert.EqualValues(t, DefaultLimit, NewBudget(0).Stats().Limit)
	b := NewBudget(100)
	require.NoError(t, b.Reserve(60))
	err := b.Reserve(41)
	require.ErrorIs(t, err, ErrBudget)
	assert.Contains(t, err.Error(), "41 bytes wanted, 60 of 100 in use")
	require.ErrorIs(t, b.Reserve(1<<63-1), ErrBudget)
	require.NoError(t, b.Reserve(40))
	b.Release(100)
	assert.Equal(t, BudgetStats{Limit: 100, High: 100}, b.Stats())
	assert.Panics(t, func() { b.Release(1) })
}

func TestBudgetConcurrent(t *testing.T) {
	b := NewBudget(10)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 1000 {
				if b.Reserve(3) == nil {
					assert.LessOrEqual(t, b.Stats().Used, int64(9))
					b.Release(3)
				}
			}
		})
	}
	wg.Wait()
	assert.Zero(t, b.Stats().Used)
	assert.LessOrEqual(t, b.Stats().High, int64(9))
}

// newSlabOf is NewSlab where there is memory.
func newSlabOf(t *testing.T, b *Budget, r Registrar, size int, access Access) *Slab {
	t.Helper()
	s, err := NewSlab(b, r, size, access)
	require.NoError(t, err)
	return s
}

func TestSlab(t *testing.T) {
	b, d := NewBudget(0), newDomain()
	page := os.Getpagesize()
	s := newSlabOf(t, b, d, page+1, AccessRemoteWrite)
	assert.Len(t, s.Bytes(), 2*page)
	assert.Zero(t, address(s.Bytes())%uintptr(page))
	assert.EqualValues(t, 2*page, b.Stats().Used)
	require.Len(t, d.regions, 1)
	assert.Equal(t, AccessRemoteWrite, s.Region().(*region).access)

	require.NoError(t, s.Deregister())
	assert.Empty(t, d.regions)
	assert.Nil(t, s.Region())
	s.Bytes()[0] = 1 // still mapped
	for range 2 {
		require.NoError(t, s.Close())
		assert.Nil(t, s.Bytes())
		assert.Zero(t, b.Stats().Used)
	}
}

func TestSlabErrors(t *testing.T) {
	b, d := NewBudget(1<<20), newDomain()
	for _, size := range []int{0, -1, 1<<63 - 1} {
		_, err := NewSlab(b, nil, size, AccessLocal)
		require.ErrorIs(t, err, errSize, "%d", size)
	}
	_, err := NewSlab(b, nil, 1<<20+1, AccessLocal)
	require.ErrorIs(t, err, ErrBudget)

	d.fail = errTest
	_, err = NewSlab(b, d, 1, AccessLocal)
	require.ErrorIs(t, err, errTest)
	assert.Zero(t, b.Stats().Used)

	// The memory must stay mapped while the fabric can reach it.
	d.fail, d.stuck = nil, errTest
	s := newSlabOf(t, b, d, 1, AccessLocal)
	require.ErrorIs(t, s.Close(), errTest)
	assert.NotZero(t, b.Stats().Used)
	s.Bytes()[0] = 1
	d.stuck = nil
	require.NoError(t, s.Close())
	assert.Zero(t, b.Stats().Used)
}

// A lazy slab is paid for by the caller that made it, until it is told to pay for itself.
func TestLazySlab(t *testing.T) {
	const size = 5000
	b := NewBudget(0)
	pages := int64(Pages(size))
	require.NoError(t, b.Reserve(pages))
	for _, pay := range []bool{false, true} {
		s, err := NewLazySlab(b, size)
		require.NoError(t, err)
		assert.Equal(t, BudgetStats{Limit: DefaultLimit, Used: pages, High: pages, Mapped: pages}, b.Stats())
		s.Bytes()[size-1] = 1
		if pay {
			s.Pay()
		}
		require.NoError(t, s.Close())
		assert.Zero(t, b.Stats().Mapped)
		assert.Equal(t, pay, b.Stats().Used == 0)
	}
}

// All mapped memory is counted, whoever pays for it, large memory included.
func TestMapped(t *testing.T) {
	b := NewBudget(0)
	s := newSlabOf(t, b, nil, 7<<20+1, AccessLocal)
	assert.EqualValues(t, len(s.Bytes()), b.Stats().Mapped)
	require.NoError(t, s.Close())
	assert.Zero(t, b.Stats().Mapped)
}

func TestSlots(t *testing.T) {
	for _, size := range []int{1, 128, 8240} {
		b, d := NewBudget(0), newDomain()
		s := NewSlots(b, d, size)
		_, ok := s.Get()
		assert.False(t, ok)
		require.NoError(t, s.Grow(3))
		require.NoError(t, s.Grow(5))
		assert.Equal(t, []int{8, 8, size}, []int{s.Len(), s.Free(), len(s.Bytes(0))})

		seen := make(map[uint32]bool)
		for i := range 8 {
			slot, ok := s.Get()
			require.True(t, ok)
			require.False(t, seen[slot])
			seen[slot] = true
			mem := s.Bytes(slot)
			assert.Len(t, mem, size)
			assert.Equal(t, size, cap(mem))
			assert.Zero(t, address(mem)%Align)
			mem[0], mem[size-1] = byte(i), byte(i)
			assert.True(t, within(d, mem, s.Desc(slot), AccessLocal))
		}
		for slot := range seen {
			assert.Equal(t, s.Bytes(slot)[0], s.Bytes(slot)[size-1], "slots overlap")
		}
		_, ok = s.Get()
		assert.False(t, ok)

		s.Put(5)
		s.Put(2)
		assert.PanicsWithValue(t, "pool: slot 2 put back twice", func() { s.Put(2) })
		slot, _ := s.Get()
		assert.EqualValues(t, 2, slot, "last in, first out")

		require.NoError(t, s.Close())
		require.NoError(t, s.Close())
		assert.Zero(t, b.Stats().Used)
		assert.Empty(t, d.regions)
	}
}

// within reports whether mem lies in the region that has desc, and that access.
func within(d *domain, mem []byte, desc uintptr, access Access) bool {
	for r := range d.regions {
		if r.Desc() == desc {
			at := address(mem) - address(r.mem)
			return r.access == access && at+uintptr(len(mem)) <= uintptr(len(r.mem))
		}
	}
	return false
}

func TestSlotsErrors(t *testing.T) {
	s := NewSlots(NewBudget(1<<20), nil, 8192)
	require.ErrorIs(t, s.Grow(0), errSize)
	require.ErrorIs(t, s.Grow(1<<62), errSize)
	require.ErrorIs(t, s.Grow(129), ErrBudget)
	require.NoError(t, s.Grow(128))
	assert.Zero(t, s.Desc(0))
	require.NoError(t, s.Close())
	assert.Zero(t, s.Len())
	assert.Panics(t, func() { NewSlots(nil, nil, 0) })
}

func BenchmarkSlots(b *testing.B) {
	s := NewSlots(NewBudget(0), nil, 8240)
	require.NoError(b, s.Grow(64))
	b.ReportAllocs()
	for b.Loop() {
		slot, _ := s.Get()
		s.Put(slot)
	}
	require.NoError(b, s.Close())
}

// watched is a domain that is told of memory that is about to be unmapped.
type watched struct {
	*domain
	gone []uintptr
}

func (w *watched) Unmapping(mem []byte) {
	mem[len(mem)-1]++ // it is still mapped
	w.gone = append(w.gone, address(mem))
}

// The Registrar is told once that addresses are about to go.
func TestUnmapper(t *testing.T) {
	w := &watched{domain: newDomain()}
	s := newSlabOf(t, NewBudget(0), w, 1, AccessRemoteWrite)
	at := address(s.Bytes())
	require.NoError(t, s.Deregister())
	assert.Empty(t, w.gone)
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	assert.Equal(t, []uintptr{at}, w.gone)
}

func TestSlotsTrim(t *testing.T) {
	b := NewBudget(DefaultLimit)
	s := NewSlots(b, nil, 4*Align)
	assert.Empty(t, s.Trim())
	for range 2 {
		require.NoError(t, s.Grow(3))
		require.NoError(t, s.Grow(2))
		slot, ok := s.Get()
		require.True(t, ok)
		assert.Empty(t, s.Trim(), "somebody has one")
		assert.Equal(t, 5, s.Len())
		s.Put(slot)
		slabs := s.Trim()
		assert.Len(t, slabs, 2)
		assert.Zero(t, s.Len())
		_, ok = s.Get()
		assert.False(t, ok)
		left, err := CloseSlabs(slabs)
		assert.NoError(t, err)
		assert.Empty(t, left)
		assert.Zero(t, b.Stats().Used)
	}
}

// BenchmarkBudget measures the accounting of one conn's receive window, from one goroutine and from all processors at once.
func BenchmarkBudget(b *testing.B) {
	budget := NewBudget(0)
	window := func() {
		if err := budget.Reserve(64 << 10); err != nil {
			panic(err)
		}
		budget.Release(64 << 10)
	}
	b.Run("goroutines=1", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			window()
		}
	})
	b.Run("goroutines=procs", func(b *testing.B) {
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				window()
			}
		})
	})
	require.Zero(b, budget.Stats().Used)
}
