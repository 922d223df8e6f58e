package shmdir

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed202c38ff/fabricnet/internal/testenv"
)

const regionSize = 1 << 20

// makeRegion makes a file at path as libfabric makes one for a region.
func makeRegion(t *testing.T, path string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte{7}, 0o600))
	require.NoError(t, os.Truncate(path, regionSize))
}

// A region is a file of this user that no one else may open, and that has one name only.
func TestOpenRegion(t *testing.T) {
	for name, c := range map[string]struct {
		make func(t *testing.T, path string)
		says string // "" if there is nothing to be said
	}{
		"as it should be": {makeRegion, ""},
		"absent":          {func(*testing.T, string) {}, "no such file"},
		"a directory": {func(t *testing.T, path string) {
			require.NoError(t, os.Mkdir(path, 0o700))
		}, "no regular file"},
		"a FIFO": {func(t *testing.T, path string) {
			require.NoError(t, unix.Mkfifo(path, 0o600))
		}, "no regular file"},
		"a socket": {func(t *testing.T, path string) {
			fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			require.NoError(t, err)
			t.Cleanup(func() { _ = unix.Close(fd) })
			require.NoError(t, unix.Bind(fd, &unix.SockaddrUnix{Name: path}))
		}, "no regular file"},
		"a symbolic link": {func(t *testing.T, path string) {
			makeRegion(t, path+".target")
			require.NoError(t, os.Symlink(path+".target", path))
		}, "no regular file"},
		"two names": {func(t *testing.T, path string) {
			makeRegion(t, path)
			require.NoError(t, os.Link(path, path+".other"))
		}, "has 2 names"},
		"readable by the group": {func(t *testing.T, path string) {
			makeRegion(t, path)
			require.NoError(t, os.Chmod(path, 0o640))
		}, "mode is 0640"},
		"writable by others": {func(t *testing.T, path string) {
			makeRegion(t, path)
			require.NoError(t, os.Chmod(path, 0o602))
		}, "mode is 0602"},
		"empty": {func(t *testing.T, path string) {
			require.NoError(t, os.WriteFile(path, nil, 0o600))
		}, "has 0 bytes"},
		"endless": {func(t *testing.T, path string) {
			makeRegion(t, path)
			require.NoError(t, os.Truncate(path, maxRegion+1))
		}, "bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			c.make(t, filepath.Join(dir, "region"))
			r, err := OpenRegion(dir, "region")
			if c.says != "" {
				require.ErrorContains(t, err, c.says)
				require.ErrorContains(t, err, "region", "which file")
				return
			}
			require.NoError(t, err)
			layout, err := r.Layout()
			require.NoError(t, err)
			assert.EqualValues(t, 7, layout)
			require.NoError(t, r.Close())
		})
	}
}

func TestNamesOfRegions(t *testing.T) {
	dir := t.TempDir()
	makeRegion(t, filepath.Join(dir, "region"))
	for _, name := range []string{"", ".", "..", "/region", "./region", "../" + filepath.Base(dir) + "/region", "region/", "region\x00", "region\n", "\x1b[31mregion", strings.Repeat("r", 256)} {
		_, err := OpenRegion(dir, name)
		assert.ErrorContains(t, err, "no name of a region", "%q", name)
	}
}

// Reserved tells memory that is merely promised from memory that is there.
func TestReserve(t *testing.T) {
	dir := t.TempDir()
	makeRegion(t, filepath.Join(dir, "region"))
	open := func() *Region {
		r, err := OpenRegion(dir, "region")
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, r.Close()) })
		return r
	}
	require.ErrorContains(t, open().Reserved(), fmt.Sprint(regionSize))
	require.NoError(t, open().Reserve())
	require.NoError(t, open().Reserved())
	layout, err := open().Layout()
	require.NoError(t, err)
	require.EqualValues(t, 7, layout, "its contents stay")
}

// If there is not enough memory left, Reserve fails and takes none.
func TestReserveOnFullFileSystem(t *testing.T) {
	if !testenv.OwnShm(t, "size=16m") {
		return
	}
	makeRegion(t, filepath.Join(Dir, "region"))
	r, err := OpenRegion(Dir, "region")
	require.NoError(t, err)
	empty := testenv.Fill(t, regionSize/2)
	var full *SpaceError
	require.ErrorAs(t, r.Reserve(), &full)
	require.ErrorIs(t, full, unix.ENOSPC)
	assert.EqualValues(t, regionSize, full.Need)
	assert.Less(t, full.Free, full.Need)
	assert.ErrorContains(t, full, "needs 1 MiB free in /dev/shm and there are 0: enlarge it")
	require.ErrorAs(t, CheckSpace(Dir, regionSize), &full)
	empty()
	require.NoError(t, CheckSpace(Dir, regionSize))
	require.NoError(t, r.Reserve())
	require.NoError(t, r.Close())
}

func TestCheckDir(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	makeRegion(t, file)
	require.ErrorContains(t, CheckDir(file), "no directory")
	require.ErrorIs(t, CheckDir(filepath.Join(dir, "absent")), os.ErrNotExist)
	require.NoError(t, CheckDir("/"))
	for mode, says := range map[uint32]string{
		0o1777: "", 0o755: "", 0o700: "",
		0o777: "chmod +t", 0o770: "chmod +t", 0o702: "chmod +t",
	} {
		require.NoError(t, unix.Chmod(dir, mode))
		if err := CheckDir(dir); says == "" {
			assert.NoError(t, err, "%o", mode)
		} else {
			assert.ErrorContains(t, err, says, "%o", mode)
		}
	}
	t.Run("another user's", func(t *testing.T) {
		testenv.NeedRoot(t)
		require.NoError(t, os.Chown(dir, testenv.StrangerUID, -1))
		require.NoError(t, unix.Chmod(dir, 0o1777))
		require.ErrorContains(t, CheckDir(dir), "belongs to user 65534")
	})
}

const strangerVar = "SHMDIR_TEST_STRANGER"

// strange makes what another user can make in a directory that everybody may write to.
func strange(dir string) {
	at := func(name string) string { return filepath.Join(dir, name) }
	for name, mode := range map[string]os.FileMode{"private": 0o600, "public": 0o666} {
		must(os.WriteFile(at(name), make([]byte, regionSize), mode))
		must(os.Chmod(at(name), mode))
	}
	must(unix.Mkfifo(at("fifo"), 0o666))
	must(os.Symlink(at("victim"), at("symlink")))
	must(os.Symlink("/proc/self/mem", at("memory")))
	if err := os.Link(at("victim"), at("hardlink")); !errors.Is(err, os.ErrPermission) { // fs.protected_hardlinks
		must(err)
	}
	for _, try := range []error{
		os.Remove(at("victim")), os.Rename(at("victim"), at("taken")), os.Rename(at("public"), at("victim")),
		os.Truncate(at("victim"), 0),
	} {
		if !errors.Is(try, os.ErrPermission) {
			panic(fmt.Sprintf("the directory is not safe: %v", try))
		}
	}
}

// Whatever another user makes under a name is not used, and what was checked about a
// name stays true.
func TestStrangersRegions(t *testing.T) {
	cmd := testenv.Stranger(t)
	dir, err := os.MkdirTemp("/dev/shm", "shmdir-test-")
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	require.NoError(t, unix.Chmod(dir, 0o1777))
	require.NoError(t, CheckDir(dir))
	makeRegion(t, filepath.Join(dir, "victim"))
	cmd.Env = append(cmd.Env, strangerVar+"="+dir)
	require.NoError(t, cmd.Run())
	made := names(t, dir)
	require.Subset(t, made, []string{"private", "public", "fifo", "symlink", "memory", "victim"})
	for _, name := range made {
		r, err := OpenRegion(dir, name)
		if name == "victim" && err == nil {
			require.NoError(t, r.Close())
			continue
		}
		if name == "victim" { // the stranger could give it a second name
			assert.ErrorContains(t, err, "has 2 names")
			continue
		}
		assert.Error(t, err, name)
	}
	text, err := os.Open(filepath.Join(dir, "victim"))
	require.NoError(t, err)
	defer text.Close()
	first, err := io.ReadAll(io.LimitReader(text, 1))
	require.NoError(t, err)
	assert.Equal(t, []byte{7}, first)
}
