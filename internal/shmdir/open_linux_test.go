package shmdir

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed202c38ff/fabricnet/internal/testenv"
)

// opened returns how often files of dir are opened while f runs.
func opened(t *testing.T, dir string, f func()) (n int) {
	t.Helper()
	watch, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	require.NoError(t, err)
	defer unix.Close(watch)
	_, err = unix.InotifyAddWatch(watch, dir, unix.IN_OPEN)
	require.NoError(t, err)
	f()
	buf := make([]byte, 64<<10)
	size, err := unix.Read(watch, buf)
	if err == unix.EAGAIN {
		return 0
	}
	require.NoError(t, err)
	for events := buf[:size]; len(events) > 0; {
		if binary.NativeEndian.Uint32(events[4:])&unix.IN_ISDIR == 0 { // inotify_event.mask
			n++
		}
		events = events[unix.SizeofInotifyEvent+binary.NativeEndian.Uint32(events[12:]):] // inotify_event.len
	}
	return n
}

// What is not ours, or not what it should be, is not even opened.
func TestOwnerBeforeOpen(t *testing.T) {
	for name, c := range map[string]struct {
		change func(t *testing.T, path string)
		opens  bool
	}{
		"ours": {func(*testing.T, string) {}, true},
		"a FIFO": {func(t *testing.T, path string) {
			require.NoError(t, os.Remove(path))
			require.NoError(t, unix.Mkfifo(path, 0o600))
		}, false},
		"another user's": {func(t *testing.T, path string) {
			testenv.NeedRoot(t)
			require.NoError(t, os.Chown(path, testenv.StrangerUID, -1))
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			dir, guard := t.TempDir(), NewName()
			path := filepath.Join(dir, guard)
			makeRegion(t, path)
			c.change(t, path)
			assert.Equal(t, c.opens, opened(t, dir, func() {
				if r, err := OpenRegion(dir, guard); err == nil {
					require.NoError(t, r.Close())
				}
			}) > 0, "OpenRegion")
			assert.Equal(t, c.opens, opened(t, dir, func() { Clean(dir) }) > 0, "Clean")
		})
	}
}
