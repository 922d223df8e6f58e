package pool

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// thisProcess is the directory in /proc where a peer finds this process's files.
func thisProcess(t *testing.T) *os.File {
	proc, err := os.Open("/proc/self")
	require.NoError(t, err)
	t.Cleanup(func() { _ = proc.Close() })
	return proc
}

// openNamed maps what a peer has named.
func openNamed(t *testing.T, b *Budget, name SharedName) *Slab {
	t.Helper()
	s, err := OpenSlab(b, thisProcess(t), name)
	require.NoError(t, err)
	return s
}

// makeFile gives a file a size and seals, and returns its name.
func makeFile(t *testing.T, fd int, err error, size int64, seals int) SharedName {
	t.Helper()
	require.NoError(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	if size > 0 {
		require.NoError(t, unix.Ftruncate(fd, size))
	}
	if seals > 0 {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
		require.NoError(t, err)
	}
	var st unix.Stat_t
	require.NoError(t, unix.Fstat(fd, &st))
	return SharedName{uint32(fd), st.Ino, aMark}
}

// aMark is the mark of shared memory in tests.
var aMark = Mark{1, 15: 1}

func newShared(t *testing.T, b *Budget, size int) *Slab {
	s, err := newSlab(b, nil, size, AccessRemoteWrite, &aMark)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, s.Close()) })
	return s
}

// What is written on one side can be read on the other, and the owner's budget pays. However
// the slab ends, its pages are freed, even while the peer has it mapped.
func TestShared(t *testing.T) {
	for name, end := range map[string]func(*Slab) error{"closed": (*Slab).Close, "retired": (*Slab).Retire} {
		t.Run(name, func(t *testing.T) {
			own, theirs := NewBudget(0), NewBudget(0)
			const size = 2 << 20
			s := newShared(t, own, size)
			m := openNamed(t, theirs, s.Shared())
			m.Bytes()[size-1] = 7
			assert.EqualValues(t, 7, s.Bytes()[size-1])
			assert.Equal(t, BudgetStats{Limit: DefaultLimit, Used: size, High: size, Mapped: size}, own.Stats())
			assert.Equal(t, BudgetStats{Limit: DefaultLimit, Foreign: size}, theirs.Stats())

			var st unix.Stat_t
			fd, err := unix.Dup(int(s.Shared().FD))
			require.NoError(t, err)
			defer unix.Close(fd)
			require.NoError(t, end(s))
			require.NoError(t, unix.Fstat(fd, &st))
			assert.Zero(t, st.Blocks, "pages are left")
			m.Bytes()[0] = 1 // late, but does no harm
			_, err = OpenSlab(theirs, thisProcess(t), s.Shared())
			require.Error(t, err)
			require.NoError(t, m.Close())
			assert.Zero(t, theirs.Stats().Foreign)
		})
	}
}

// Neither side can make the file shorter or longer, or change its seals.
func TestSealed(t *testing.T) {
	s := newShared(t, NewBudget(0), MinBlock)
	fd := int(s.Shared().FD)
	require.ErrorIs(t, unix.Ftruncate(fd, 0), unix.EPERM)
	require.ErrorIs(t, unix.Ftruncate(fd, int64(headSize+2*MinBlock)), unix.EPERM)
	_, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_WRITE)
	require.ErrorIs(t, err, unix.EPERM)
}

// A peer may name any file, but nothing is mapped that could be taken away again.
func TestOpenSlabRefuses(t *testing.T) {
	b, proc := NewBudget(0), thisProcess(t)
	file := func(size, seals int) SharedName {
		fd, err := memfd("test")
		if err == nil && size > 0 {
			err = unix.Fallocate(fd, 0, 0, int64(size))
		}
		return makeFile(t, fd, err, 0, seals)
	}
	fd, err := memfd("sparse")
	sparse := makeFile(t, fd, err, MaxShared, sealed)
	fd, err = unix.MemfdCreate("huge", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_HUGETLB)
	huge := makeFile(t, fd, err, MaxShared, sealed)
	path := filepath.Join(t.TempDir(), "fifo")
	require.NoError(t, unix.Mkfifo(path, 0o600))
	fd, err = unix.Open(path, unix.O_RDWR, 0)
	fifo := makeFile(t, fd, err, 0, 0)
	fd, err = unix.Open(filepath.Join(t.TempDir(), "file"), unix.O_RDWR|unix.O_CREAT, 0o600)
	plain := makeFile(t, fd, err, MinBlock, 0)
	other := newShared(t, b, MinBlock).Shared()
	other.Inode++
	another := newShared(t, b, MinBlock).Shared()
	another.Mark[3]++
	for name, tt := range map[string]struct {
		file SharedName
		text string
	}{
		"nothing":        {SharedName{FD: 1 << 30, Inode: 1}, "no such file"},
		"no name":        {SharedName{}, "it is another file"},
		"another inode":  {other, "it is another file"},
		"FIFO":           {fifo, "it is another file"},
		"file on a disk": {plain, "it is another file"},
		"huge pages":     {huge, "it is another file"},
		"sparse":         {sparse, "of its 8388608 bytes 0 are there"},
		"another peer's": {another, "it was not made for this peer"},
		"no mark":        {file(headSize+MinBlock, sealed), "it was not made for this peer"},
		"not sealed":     {file(headSize+MinBlock, 0), "it is not sealed"},
		"can shrink":     {file(headSize+MinBlock, unix.F_SEAL_GROW|unix.F_SEAL_SEAL), "it is not sealed"},
		"seals to come":  {file(headSize+MinBlock, unix.F_SEAL_GROW|unix.F_SEAL_SHRINK), "it is not sealed"},
		"empty":          {file(0, sealed), "it has 0 bytes"},
		"only a head":    {file(headSize, sealed), "it has "},
		"too large":      {file(headSize+MaxShared+MinBlock, sealed), "bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := OpenSlab(b, proc, tt.file)
			require.ErrorContains(t, err, tt.text)
			assert.Zero(t, b.Stats().Foreign)
		})
	}
}

// The size of a file can be relied on only once it is sealed. Until then anybody who opens it can
// make it shorter, so that a process that touches the rest dies of SIGBUS.
func TestShrunkBeforeSealed(t *testing.T) {
	fd, err := memfd("shrunk")
	name := makeFile(t, fd, err, MaxShared, 0)
	require.NoError(t, unix.Fallocate(fd, 0, 0, MaxShared))
	size := MaxShared - headSize
	path, found, err := findShared(thisProcess(t), name)
	require.NoError(t, err)
	require.Equal(t, size, found)
	defer path.Close()
	require.NoError(t, unix.Ftruncate(fd, MinBlock))
	_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, sealed)
	require.NoError(t, err)
	wrong := fmt.Sprintf("it has %d bytes, of which %[1]d are there, and should have %d", MinBlock, MaxShared)
	_, err = openShared(path, size, Mark{})
	require.ErrorContains(t, err, wrong, "a peer's")
	_, err = checkSealed(fd, size)
	require.ErrorContains(t, err, wrong, "our own")
}

// Blocks of an arena with shared memory say where they lie.
func TestArenaShares(t *testing.T) {
	a, b, _ := landing(4 * MinBlock)
	a.Share(aMark)
	defer func() { require.NoError(t, a.Close()) }()
	first, second := alloc(t, a, MinBlock, 1)[0], alloc(t, a, 2*MinBlock, 1)[0]
	m := openNamed(t, b, first.Shared)
	defer func() { require.NoError(t, m.Close()) }()
	assert.Equal(t, first.Shared, second.Shared)
	m.Bytes()[second.Offset] = 9
	assert.EqualValues(t, 9, second.Bytes[0])
}

// However much a peer offers, no more is mapped than the budget has room for, nor in more pieces than the kernel allows.
func TestForeignIsBounded(t *testing.T) {
	proc := thisProcess(t)
	const size = 2 * smallForeign
	s := newShared(t, NewBudget(0), size)
	b := NewBudget(size + smallForeign)
	first := openNamed(t, b, s.Shared())
	_, err := OpenSlab(b, proc, s.Shared())
	require.ErrorIs(t, err, ErrBudget)
	assert.EqualValues(t, size, b.Stats().Foreign)
	for range 2 { // small pieces are limited by their number alone
		small := openNamed(t, b, newShared(t, NewBudget(0), smallForeign).Shared())
		defer func() { assert.NoError(t, small.Close()) }()
	}
	require.NoError(t, first.Close())

	b = NewBudget(0)
	b.others.Store(maxForeign)
	_, err = OpenSlab(b, proc, s.Shared())
	require.ErrorIs(t, err, ErrBudget)
	assert.EqualValues(t, maxForeign, b.others.Load())
	assert.Zero(t, b.Stats().Foreign)
	_, err = OpenSlab(b, proc, SharedName{FD: s.Shared().FD, Inode: 1})
	require.Error(t, err)
	assert.EqualValues(t, maxForeign, b.others.Load())
}

// TestDescriptorsShortOnce: that descriptors were short once has no lasting effect.
func TestDescriptorsShortOnce(t *testing.T) {
	s, proc, b := newShared(t, NewBudget(0), MinBlock), thisProcess(t), NewBudget(0)
	knownDevice.Store(nil)
	var limit unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	restore := func() { require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)) }
	defer restore()
	free, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	require.NoError(t, unix.Close(free))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(free) + 1, Max: limit.Max})) // one is left
	_, err = OpenSlab(b, proc, s.Shared())
	require.ErrorIs(t, err, unix.EMFILE)
	restore()
	require.NoError(t, openNamed(t, b, s.Shared()).Close())
}

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

func fill(mem []byte, with byte) {
	for i := range mem {
		mem[i] = with
	}
}

// Retired slabs of every size keep their addresses, and all of them together take one sink,
// however much is still written to them. No budget pays for that.
func TestRetire(t *testing.T) {
	b, d := NewBudget(0), newDomain()
	before := residentShared(t)
	var slabs []*Slab
	var mems [][]byte
	for _, size := range []int{MinBlock, sinkSize / 2, sinkSize, 4 * sinkSize, 3*sinkSize + MinBlock} {
		s := newSlabOf(t, b, d, size, AccessRemoteWrite)
		slabs, mems = append(slabs, s), append(mems, s.Bytes())
		fill(s.Bytes(), 1)
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
		fill(mem, 2)
	}
	assert.LessOrEqual(t, residentShared(t)-before, sinkSize)
	closeAll(t, append(slabs, slabs...))
	assert.Zero(t, b.Stats().Used)
	assert.LessOrEqual(t, residentShared(t)-before, sinkSize)
}

// Only memory that a peer had the use of when it was given up keeps its addresses.
func TestArenaRetire(t *testing.T) {
	a, b, _ := landing(sinkSize)
	blocks := alloc(t, a, sinkSize, 2)
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
