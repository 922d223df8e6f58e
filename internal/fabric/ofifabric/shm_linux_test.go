//go:build cgo

package ofifabric_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/internal/fabric/ofifabric"
	"github.com/seed202c38ff/fabricnet/internal/shmdir"
	"github.com/seed202c38ff/fabricnet/internal/testenv"
)

// strangerVar, set in the environment, lists what the test binary, started as another user, makes in
// /dev/shm: kinds and names (see makeFiles).
const strangerVar = "OFIFABRIC_TEST_STRANGER"

const regionBytes = 16 << 20

// makeFiles makes a file for each kind=name. A kind is "link" (to another file), "fifo", "dir", or the
// version of a region's layout: that makes a file that looks like a region that is still being made.
func makeFiles(names []string) error {
	for _, n := range names {
		kind, name, _ := strings.Cut(n, "=")
		path := filepath.Join(shmdir.Dir, name)
		var err error
		switch kind {
		case "link":
			err = os.Symlink(filepath.Join(shmdir.Dir, "target"), path)
		case "fifo":
			err = unix.Mkfifo(path, 0o666)
		case "dir":
			err = os.Mkdir(path, 0o777)
		default:
			version, _ := strconv.Atoi(kind)
			region := make([]byte, regionBytes)
			region[0] = byte(version)
			if err = os.WriteFile(path, region, 0o666); err == nil { //nolint:gosec // that is what is tested
				err = os.Chmod(path, 0o666)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// strange makes files as another user.
func strange(t *testing.T, files ...string) {
	t.Helper()
	cmd := testenv.Stranger(t)
	cmd.Env = append(cmd.Env, strangerVar+"="+strings.Join(files, " "))
	require.NoError(t, cmd.Run())
}

func openShm() (fabric.Endpoint, error) { return ofifabric.New().Open("shm", loopback) }

// region returns the name of an endpoint's file.
func region(ep fabric.Endpoint) string {
	return string(bytes.TrimSuffix(bytes.TrimPrefix(ep.Name(), []byte("fi_shm://")), []byte{0}))
}

// layout returns the first byte of an endpoint's file, the version of its layout.
func layout(t *testing.T, ep fabric.Endpoint) byte {
	t.Helper()
	f, err := os.Open(filepath.Join(shmdir.Dir, region(ep)))
	require.NoError(t, err)
	defer f.Close()
	var first [1]byte
	_, err = f.Read(first[:])
	require.NoError(t, err)
	return first[0]
}

// The name of each region contains 128 random bits.
func TestRegionNamesAreRandom(t *testing.T) {
	seen := map[string]bool{}
	for range 8 {
		ep := open(t, "shm")
		head, _, _ := strings.Cut(region(ep), ":")
		parts := strings.Split(head, "-")
		require.Len(t, parts, 3)
		require.Len(t, parts[2], 32)
		require.False(t, seen[parts[2]])
		seen[parts[2]] = true
	}
}

// All of a region's memory is reserved before the region is used.
func TestRegionIsReserved(t *testing.T) {
	var st unix.Stat_t
	require.NoError(t, unix.Stat(filepath.Join(shmdir.Dir, region(open(t, "shm"))), &st))
	assert.GreaterOrEqual(t, st.Blocks*512, st.Size)
	assert.LessOrEqual(t, st.Size, int64(shmdir.PerEndpoint))
	assert.EqualValues(t, 0o600, st.Mode&0o777)
}

// Another user knows the name that a region is going to have, and has made a file of that name.
// libfabric takes it (if the kernel's fs.protected_regular lets it), but it is not used.
func TestStrangerOwnsRegion(t *testing.T) {
	if !testenv.OwnShm(t, "size=1g,mode=1777") {
		return
	}
	defer ofifabric.SetRandomRegion([16]byte{1, 2, 3})()
	kinds := []string{"file"}
	if ofifabric.LibraryBefore("2.3") { // since then smr_ep_ctrl goes on without a region, which ends the process
		kinds = append(kinds, "link", "fifo", "dir")
	}
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			ep, err := openShm()
			require.NoError(t, err)
			name := region(ep)
			if kind == "file" {
				kind = strconv.Itoa(int(layout(t, ep)))
			}
			require.NoError(t, ep.Close())
			last := strings.LastIndexByte(name, ':')
			number, err := strconv.Atoi(name[last+1:])
			require.NoError(t, err)
			next := fmt.Sprintf("%s:%d", name[:last], number+1)
			strange(t, kind+"="+next)
			_, err = openShm()
			require.Error(t, err)
			t.Log(err)
			_ = os.Remove(filepath.Join(shmdir.Dir, next)) // libfabric may have done that
			ep, err = openShm()
			require.NoError(t, err, "the next one has another name")
			require.NoError(t, ep.Close())
		})
	}
}

// Whatever another user can learn in advance about the names of regions does not help.
func TestStrangerGuesses(t *testing.T) {
	if !testenv.OwnShm(t, "size=2g,mode=1777") {
		return
	}
	ep, err := openShm()
	require.NoError(t, err)
	name, version := region(ep), strconv.Itoa(int(layout(t, ep)))
	require.NoError(t, ep.Close())
	head, user, _ := strings.Cut(name, ":")
	parts := strings.Split(head, "-")
	user, number, _ := strings.Cut(user, ":")
	n, err := strconv.Atoi(number)
	require.NoError(t, err)
	var files []string
	for i := range 4 { // parts that can be known, and all of the last name's
		for _, guess := range []string{parts[0], parts[0] + "-" + parts[1], head} {
			files = append(files, fmt.Sprintf("%s=%s:%s:%d", version, guess, user, n+1+i))
		}
	}
	strange(t, files...)
	for range 4 {
		ep, err := openShm()
		require.NoError(t, err)
		var st unix.Stat_t
		require.NoError(t, unix.Stat(filepath.Join(shmdir.Dir, region(ep)), &st))
		require.Zero(t, st.Uid)
		require.NoError(t, ep.Close())
	}
}

// A peer may name any file, but only those that can be regions of this user are given to libfabric.
func TestPeersRegionIsChecked(t *testing.T) {
	if !testenv.OwnShm(t, "size=1g,mode=1777") {
		return
	}
	a, b := open(t, "shm"), open(t, "shm")
	version := layout(t, b)
	own := func(name string, blocks, size int64, mode uint32) {
		path := filepath.Join(shmdir.Dir, name)
		require.NoError(t, os.WriteFile(path, bytes.Repeat([]byte{version}, int(blocks)), 0o600))
		require.NoError(t, os.Truncate(path, size))
		require.NoError(t, unix.Chmod(path, mode))
	}
	strange(t, fmt.Sprintf("%d=9-file:0:0", version), "link=9-link:0:0", "fifo=9-fifo:0:0", "dir=9-dir:0:0")
	own("9-sparse:0:0", 1, regionBytes, 0o600)
	own("9-open:0:0", regionBytes, regionBytes, 0o644)
	own("9-short:0:0", 100, 100, 0o600)
	own("9-linked:0:0", regionBytes, regionBytes, 0o600)
	require.NoError(t, os.Link(shmdir.Dir+"/9-linked:0:0", shmdir.Dir+"/9-other:0:0"))
	for name, says := range map[string]string{
		"9-file:0:0":             "belongs to user 65534",
		"9-link:0:0":             "no regular file",
		"9-fifo:0:0":             "no regular file",
		"9-dir:0:0":              "no regular file",
		"9-sparse:0:0":           "has memory for",
		"9-open:0:0":             "mode is 0644",
		"9-short:0:0":            "has 100 bytes",
		"9-linked:0:0":           "has 2 names",
		"9-other:0:0":            "has 2 names",
		"9-absent:0:0":           "no such file",
		"..":                     "no name",
		"../shm/9-file:0:0":      "no region is known",
		"/" + region(b):          "no region is known",
		strings.Repeat("9", 300): "no name",
	} {
		_, err := a.Insert([]byte("fi_shm://" + name + "\x00"))
		assert.ErrorContains(t, err, says, name)
	}
	_, err := a.Insert(b.Name())
	require.NoError(t, err)
}

// Shared memory is not used if other users can exchange the files in /dev/shm.
func TestUnsafeShm(t *testing.T) {
	for name, options := range map[string]string{
		"not sticky":     "size=1g,mode=0777",
		"another user's": "size=1g,mode=1777,uid=" + strconv.Itoa(testenv.StrangerUID),
	} {
		t.Run(name, func(t *testing.T) {
			if !testenv.OwnShm(t, options) {
				return
			}
			_, err := openShm()
			require.ErrorContains(t, err, "provider shm: /dev/shm ")
			require.ErrorContains(t, err, "exchange the files")
			ep, err := ofifabric.New().Open(testenv.Native, loopback)
			require.NoError(t, err, "the other providers are not concerned")
			require.NoError(t, ep.Close())
		})
	}
}

// However full /dev/shm is, opening an endpoint either fails, or the endpoint works: one that is open
// goes on working when no room is left.
func TestFullShm(t *testing.T) {
	least := runtime.NumCPU() * shmdir.PerCPU // what libfabric needs to offer shm
	if !testenv.OwnShm(t, fmt.Sprintf("size=%d", least+3*shmdir.PerEndpoint)) {
		return
	}
	for _, leave := range []int64{0, 4096, 1 << 20, shmdir.PerEndpoint - 1<<20, int64(least) - 3<<20} {
		empty := testenv.Fill(t, leave)
		ep, err := openShm()
		if leave > shmdir.PerEndpoint && err == nil { // libfabric's regions were smaller than 17 MiB
			require.NoError(t, ep.Close())
		} else {
			require.ErrorIs(t, err, syscall.ENOSPC, "%d bytes", leave)
			require.ErrorContains(t, err, "MiB free in /dev/shm", "%d bytes", leave)
		}
		empty()
	}
	a, b := pair(t, "shm")
	empty := testenv.Fill(t, 0)
	_, err := openShm()
	require.ErrorIs(t, err, syscall.ENOSPC)
	// All buffers of both regions are used.
	const size = 4096
	rounds := 2 * a.Attr().RxDepth
	in, message := mapped(t, size), bytes.Repeat([]byte{5}, size)
	for range rounds {
		for _, s := range [][2]*side{{a, b}, {b, a}} {
			from, to := s[0], s[1]
			to.post(from, fabric.Op{Kind: fabric.Recv, Buf: in})
			from.post(to, fabric.Op{Kind: fabric.Inject, To: from.peer, Buf: message[:min(size, from.Attr().InjectSize)]})
			require.NoError(t, to.await(from, fabric.Recv).Err)
		}
	}
	empty()
	ep, err := openShm()
	require.NoError(t, err, "there is room again")
	require.NoError(t, ep.Close())
}

// If many goroutines open endpoints at once, some find room, and the others get an error.
func TestCrowdedShm(t *testing.T) {
	const some, many, rounds = 2, 12, 8
	least := runtime.NumCPU() * shmdir.PerCPU
	if !testenv.OwnShm(t, fmt.Sprintf("size=%d", least+some*shmdir.PerEndpoint)) {
		return
	}
	for range rounds {
		var (
			wg     sync.WaitGroup
			opened [many]fabric.Endpoint
			errs   [many]error
			works  int
		)
		for i := range many {
			wg.Go(func() { opened[i], errs[i] = openShm() })
		}
		wg.Wait()
		for i := range many {
			if errs[i] != nil {
				require.ErrorIs(t, errs[i], syscall.ENOSPC)
				continue
			}
			works++
			require.NoError(t, opened[i].Close())
		}
		require.Positive(t, works)
		require.Less(t, works, many)
	}
}

// If a process has hardly any descriptors left, opening an endpoint either fails or works, and leaves
// nothing in /dev/shm.
func TestFewDescriptors(t *testing.T) {
	if !testenv.OwnShm(t, "size=1g,mode=1777") {
		return
	}
	ep, err := openShm()
	require.NoError(t, err)
	require.NoError(t, ep.Close())
	var limit unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	limit.Cur = 64
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
	var taken []*os.File
	for {
		f, err := os.Open(os.DevNull)
		if errors.Is(err, syscall.EMFILE) {
			break
		}
		require.NoError(t, err)
		taken = append(taken, f)
	}
	_, err = openShm()
	require.ErrorIs(t, err, syscall.EMFILE, "none is left")
	refused := 0
	for i, f := range taken {
		require.NoError(t, f.Close())
		if ep, err := openShm(); err != nil {
			require.ErrorIs(t, err, syscall.EMFILE, "%d are left", i+1)
			refused++
		} else {
			require.NoError(t, ep.Close())
		}
	}
	assert.NotZero(t, refused)
	assert.Less(t, refused, len(taken))
	assert.Empty(t, shmNames(t))
}
