//go:build linux

package pool

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// taken reports whether something is mapped at the address of mem.
func taken(t *testing.T, mem []byte) bool {
	t.Helper()
	at, err := unix.MmapPtr(-1, 0, unsafe.Pointer(unsafe.SliceData(mem)), uintptr(len(mem)),
		unix.PROT_NONE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_FIXED_NOREPLACE)
	if err == nil {
		require.NoError(t, unix.MunmapPtr(at, uintptr(len(mem))))
		return false
	}
	require.ErrorIs(t, err, unix.EEXIST)
	return true
}

// residentShared returns how much shared memory this process has resident, in bytes.
func residentShared(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile("/proc/self/smaps_rollup")
	require.NoError(t, err)
	_, rest, ok := strings.Cut(string(text), "\nPss_Shmem:")
	require.True(t, ok, "%s", text)
	kib, err := strconv.Atoi(strings.Fields(rest)[0])
	require.NoError(t, err)
	return kib << 10
}

// Retired slabs of every size keep their addresses, and all of them together take one sink,
// however much is still written to them. No budget pays for that.
func TestRetire(t *testing.T) {
	b, d := NewBudget(0), newDomain()
	before := residentShared(t)
	var slabs []*Slab
	var mems [][]byte
	for _, size := range []int{MinBlock, sinkSize / 2, sinkSize, 4 * sinkSize, 3*sinkSize + MinBlock} {
		s, err := NewSlab(b, d, size, AccessRemoteWrite)
		require.NoError(t, err)
		slabs, mems = append(slabs, s), append(mems, s.Bytes())
		for i := range s.Bytes() {
			s.Bytes()[i] = 1
		}
	}
	d.stuck = errTest
	require.ErrorIs(t, slabs[0].Retire(), errTest)
	assert.EqualValues(t, 1, mems[0][0], "nothing has changed")
	d.stuck = nil
	for _, s := range slabs {
		require.NoError(t, s.Retire())
		require.NoError(t, s.Retire())
	}
	assert.Empty(t, d.regions)
	assert.Zero(t, b.Stats().Used)
	assert.Zero(t, b.Stats().Mapped)
	for _, mem := range mems {
		assert.True(t, taken(t, mem))
		assert.NotEqualValues(t, 1, mem[len(mem)-1], "what was there is gone")
		for i := range mem {
			mem[i] = 2
		}
	}
	assert.LessOrEqual(t, residentShared(t)-before, sinkSize)
	for _, s := range slabs {
		require.NoError(t, s.Close())
		require.NoError(t, s.Close())
	}
	assert.Zero(t, b.Stats().Used)
	assert.LessOrEqual(t, residentShared(t)-before, sinkSize)
}

// Only memory that a peer had the use of when it was given up keeps its addresses.
func TestArenaRetire(t *testing.T) {
	b, d := NewBudget(0), newDomain()
	a := NewArena(b, d, AccessRemoteWrite, sinkSize)
	var blocks []*Block
	for range 2 {
		block, err := a.Alloc(sinkSize)
		require.NoError(t, err)
		blocks = append(blocks, block)
	}
	mem := blocks[1].Bytes
	a.Free(blocks[0])
	closeAll(t, a.Trim(0))
	require.NoError(t, a.Deregister())
	a.Free(blocks[1])
	require.NoError(t, a.Deregister())
	require.NoError(t, a.Retire())
	require.NoError(t, a.Retire())
	assert.Equal(t, 1, a.Stats().Slabs, "the peer had given the other back")
	assert.True(t, taken(t, mem))
	require.NoError(t, a.Close())
	assert.Zero(t, b.Stats().Used)
}
