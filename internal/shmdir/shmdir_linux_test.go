package shmdir

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("SHMDIR_TEST_DIR"); dir != "" {
		leave(dir)
		return
	}
	if dir := os.Getenv(strangerVar); dir != "" {
		strange(dir)
		return
	}
	os.Exit(m.Run())
}

// leave makes a guard with names beside it, and a claim, says so, and waits to be
// killed.
func leave(dir string) {
	f, err := Create(dir, NewName(), 4096)
	must(err)
	must(unix.Mkfifo(f.Name()+".bell", 0o600))
	region := fmt.Sprintf("%d-0123456789abcdef:0:7", os.Getpid())
	must(os.WriteFile(filepath.Join(dir, region), []byte("memory"), 0o600))
	_, err = NewClaim(dir, region)
	must(err)
	fmt.Println("ready")
	select {}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func names(t *testing.T, dir string) (names []string) {
	t.Helper()
	list, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

// What a process has is left alone for as long as it lives, even if it is stopped,
// and goes when it has been killed.
func TestClean(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "SHMDIR_TEST_DIR="+dir)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	defer func() { _ = cmd.Process.Kill() }()
	_, err = out.Read(make([]byte, 16))
	require.NoError(t, err)
	alive := names(t, dir)
	require.Len(t, alive, 4)
	// Names that are not ours, or do not keep to the rules.
	others := []string{"1:0:0", "fabricnet-x", NewName()[:20], "sem.other"}
	for _, name := range others {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	require.NoError(t, cmd.Process.Signal(syscall.SIGSTOP))
	Clean(dir)
	assert.Subset(t, names(t, dir), alive)
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	Clean(dir)
	assert.ElementsMatch(t, others, names(t, dir))
}

// A claim of a dead process is no reason to remove a name that has come to belong
// to somebody else.
func TestCleanSparesNewOwners(t *testing.T) {
	const region = "1-0123456789abcdef:0:0"
	for name, c := range map[string]struct {
		region string
		inode  uint64 // added
		stays  bool
	}{
		"stale":         {region, 0, false},
		"another file":  {region, 1, true},
		"not a region":  {"important", 0, true},
		"not ours":      {"1:0:0", 0, true},
		"another place": {"../important", 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			dir := filepath.Join(root, "shm")
			require.NoError(t, os.Mkdir(dir, 0o700))
			path := filepath.Join(dir, c.region)
			require.NoError(t, os.WriteFile(path, nil, 0o600))
			var st unix.Stat_t
			require.NoError(t, unix.Stat(path, &st))
			text := fmt.Sprintf("%s %d\n", c.region, st.Ino+c.inode)
			claim := filepath.Join(dir, NewName()+claimSuffix)
			require.NoError(t, os.WriteFile(claim, []byte(text), 0o600))
			Clean(dir)
			_, err := os.Stat(path)
			assert.Equal(t, c.stays, err == nil)
			_, err = os.Stat(claim)
			assert.ErrorIs(t, err, os.ErrNotExist, "the claim")
		})
	}
}

func TestClaimRemove(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "1:2:3"), nil, 0o600))
	c, err := NewClaim(dir, "1:2:3")
	require.NoError(t, err)
	require.Len(t, names(t, dir), 2)
	for range 2 {
		require.NoError(t, c.Remove())
		require.Empty(t, names(t, dir))
	}
	// Somebody else's by now, such as a process of the same number in a container.
	require.NoError(t, os.WriteFile(filepath.Join(dir, "1:2:3"), nil, 0o600))
	require.NoError(t, c.Remove())
	require.Len(t, names(t, dir), 1)
	c, err = NewClaim(dir, "1:2:3")
	require.NoError(t, err)
	require.NoError(t, os.Rename(filepath.Join(dir, "1:2:3"), filepath.Join(dir, "kept"))) // not to use its inode again
	require.NoError(t, os.WriteFile(filepath.Join(dir, "1:2:3"), nil, 0o600))
	require.NoError(t, c.Remove())
	require.FileExists(t, filepath.Join(dir, "1:2:3"))
	_, err = NewClaim(dir, "absent")
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = Create(filepath.Join(dir, "absent"), NewName(), 1)
	require.ErrorIs(t, err, os.ErrNotExist)
}
