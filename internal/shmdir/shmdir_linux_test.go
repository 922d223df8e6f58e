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

// leave makes guards and names that they guard, prints that it is ready, and waits to be killed.
func leave(dir string) {
	f, err := Create(dir, NewName(), 4096)
	must(err)
	must(unix.Mkfifo(f.Name()+".bell", 0o600))
	g := NewGuard(dir)
	must(g.Hold())
	must(os.WriteFile(filepath.Join(dir, g.Prefix()+"1-0123456789abcdef:0:7"), []byte("memory"), 0o600))
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

// A process's names are left alone for as long as it lives, even if it is stopped,
// and are removed once it has been killed.
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
	// Names that are not ours, or do not follow our rules.
	others := []string{"1:0:0", "fabricnet-x", NewName()[:20], "sem.other", NewName() + ".alone"}
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

// A guard exists while anybody holds it, and can be held again.
func TestGuard(t *testing.T) {
	dir := t.TempDir()
	g := NewGuard(dir)
	for range 2 {
		require.NoError(t, g.Hold())
		require.NoError(t, g.Hold())
		require.Len(t, names(t, dir), 1)
		region := filepath.Join(dir, g.Prefix()+"region")
		require.NoError(t, os.WriteFile(region, nil, 0o600))
		require.NoError(t, g.Release())
		Clean(dir)
		require.Len(t, names(t, dir), 2)
		require.NoError(t, os.Remove(region))
		require.NoError(t, g.Release())
		require.Empty(t, names(t, dir))
	}
	require.NoError(t, g.Hold())
	require.NoError(t, os.Remove(filepath.Join(dir, names(t, dir)[0])))
	require.NoError(t, g.Release(), "somebody else has removed it")
	absent := NewGuard(filepath.Join(dir, "absent"))
	require.ErrorIs(t, absent.Hold(), os.ErrNotExist)
	require.ErrorIs(t, absent.Hold(), os.ErrNotExist)
}
