//go:build linux && cgo

package systemtest

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

func needsShm(t *testing.T) {
	t.Helper()
	if !slices.Contains(testenv.Providers(), "shm") {
		t.Skip("needs shm")
	}
}

func init() { rdmatest.Roles["mapped echo"] = mappedEcho }

// mappedEcho echoes on one conn, and prints at the end how many bytes it has copied to mapped rings.
func mappedEcho(provider, _ string) error {
	tr := new(rdmanet.Transport)
	lc := rdmanet.ListenConfig{Transport: tr, Providers: []string{provider}}
	l, err := lc.Listen(context.Background(), "rdma", testenv.Address())
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	c, err := l.Accept()
	if err != nil {
		return err
	}
	if _, err := io.Copy(c, c); err != nil {
		return err
	}
	fmt.Println(tr.Stats().Providers[provider].Copies.Mapped)
	return tr.Close()
}

// TestMappedRings: two processes map each other's rings, and all large data is copied there.
func TestMappedRings(t *testing.T) {
	needsShm(t)
	tr := new(rdmanet.Transport)
	rdmatest.Cleanly(t, tr)
	cmd := rdmatest.Process(t, "mapped echo", "shm", "")
	_, stdout := rdmatest.Start(t, cmd)
	c := dial(t, &rdmanet.Dialer{Transport: tr, Providers: []string{"shm"}, Timeout: rdmatest.Patience}, rdmatest.Line(t, stdout))
	e := &echoed{c: c}
	for e.sent.Load() < 16<<20 {
		require.NoError(t, e.write(len(e.out)))
		require.NoError(t, e.rest())
	}
	path, foreign := c.(*rdmanet.Conn).Info().LargePath, tr.Stats().Memory.Foreign
	require.NoError(t, c.Close())
	here := tr.Stats().Providers["shm"].Copies.Mapped
	var there uint64
	_, err := fmt.Sscan(rdmatest.Line(t, stdout), &there)
	require.NoError(t, err)
	require.NoError(t, cmd.Wait())
	t.Logf("%s; %d KiB were mapped; %d KiB were copied there, and %d KiB here", path, foreign>>10, here>>10, there>>10)
	assert.Greater(t, here, uint64(8<<20))
	assert.Greater(t, there, uint64(8<<20))
	assert.Positive(t, foreign)
	assert.Equal(t, "copy to a ring that both processes map, then send", path)
}

// TestFilesAndMappedRings: ReadFrom copies files to the peer's ring, not to memory that they would
// be sent from.
func TestFilesAndMappedRings(t *testing.T) {
	needsShm(t)
	const size = 16 << 20
	server, client := new(rdmanet.Transport), new(rdmanet.Transport)
	rdmatest.Cleanly(t, server, client)
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: server, Providers: []string{"shm"}})
	c, s := rdmatest.Meet(t, &rdmanet.Dialer{Transport: client, Providers: []string{"shm"}}, l)
	read := make(chan int64, 1)
	go func() {
		n, err := io.Copy(io.Discard, s)
		assert.NoError(t, err)
		read <- n
	}()
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, f.Truncate(size))
	_, err = c.ReadFrom(f)
	require.NoError(t, err)
	n, err := c.ReadFrom(f)
	require.NoError(t, err, "at its end")
	require.Zero(t, n)
	require.NoError(t, c.CloseWrite())
	assert.EqualValues(t, size, <-read)
	copies := client.Stats().Providers["shm"].Copies
	assert.Greater(t, copies.Mapped, uint64(size/2))
	assert.Zero(t, copies.Unstaged)
	rdmatest.CloseAll(t, c, s)
}

// TestKilledInMidCopy kills peers while large data is copied in both directions, to rings that
// both processes have mapped. What the peer had mapped, or had given to be mapped, does not hurt
// this process.
func TestKilledInMidCopy(t *testing.T) {
	needsShm(t)
	testKilled(t, "shm", func(t *testing.T, tr *rdmanet.Transport, _ *rdmanet.Listener, provider string, after time.Duration) (int, time.Duration) {
		copied := func() uint64 { return tr.Stats().Providers[provider].Copies.Mapped }
		had := copied()
		return killServerWhen(t, tr, provider, func() {
			rdmatest.Eventually(t, func() bool { return copied() > had+8<<20 }, "the peer's rings are mapped")
			time.Sleep(after / 10)
		})
	})
}
