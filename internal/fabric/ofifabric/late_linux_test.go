//go:build linux && cgo

package ofifabric_test

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/internal/fabric/ofifabric"
	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/seed202c38ff/fabricnet/pool"
)

// lateVar, set in the environment, names the provider over which the test binary writes.
const lateVar = "OFIFABRIC_TEST_LATE"

func TestMain(m *testing.M) {
	if provider := os.Getenv(lateVar); provider != "" {
		if err := lateWriter(provider); err != nil {
			fmt.Fprintln(os.Stderr, "writer:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if names := os.Getenv(strangerVar); names != "" {
		if err := makeFiles(strings.Fields(names)); err != nil {
			fmt.Fprintln(os.Stderr, "stranger:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if os.Getenv(openerVar) != "" {
		fmt.Fprintln(os.Stderr, "opener:", openForever())
		os.Exit(1)
	}
	os.Exit(m.Run())
}

const (
	lateSize = 2 << 20   // of the memory that is written to
	lateWide = 512 << 10 // of each write
	lateByte = 0xd1
)

// lateWriter writes over and over to the memory that its standard input names. It prints "full" once
// nothing has been sent for 100 ms, and ends when its standard input does.
func lateWriter(provider string) error {
	ep, err := ofifabric.New().Open(provider, loopback)
	if err != nil {
		return err
	}
	fmt.Println(hex.EncodeToString(ep.Name()))
	in := bufio.NewReader(os.Stdin)
	var name []byte
	write := fabric.Op{Kind: fabric.Write}
	if _, err := fmt.Fscanf(in, "%x %d %d\n", &name, &write.Remote, &write.Key); err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(io.Discard, in)
		os.Exit(0)
	}()
	if write.To, err = ep.Insert(name); err != nil {
		return err
	}
	source, err := pool.NewSlab(pool.NewBudget(0), ep, lateWide, pool.AccessLocal)
	if err != nil {
		return err
	}
	write.Buf, write.Desc = source.Bytes(), source.Region().Desc()
	for i := range write.Buf {
		write.Buf[i] = lateByte
	}
	base, done := write.Remote, make([]fabric.Completion, 8)
	for i, gone, said := uint64(0), time.Now(), false; ; {
		write.Remote = base + i*lateWide%lateSize
		posted, reaped, err := ep.Exchange([]fabric.Op{write}, done)
		if err != nil {
			return err
		}
		i += uint64(posted)
		if posted+reaped > 0 {
			gone = time.Now()
		} else if !said && i > 0 && time.Since(gone) > 100*time.Millisecond {
			said = true
			fmt.Println("full")
		}
	}
}

// written reports whether some of the writer's bytes are in mem.
func written(mem []byte) bool { return bytes.IndexByte(mem, lateByte) >= 0 }

// lateRound gives up a peer that is stopped in the middle of a write, and ends the memory that the
// peer writes to by calling end. Then it maps other memory, and asks for the same addresses. It lets
// the peer go on, and returns the other memory and what the slab has at those addresses.
func lateRound(t *testing.T, provider string, end func(*pool.Slab) error) (others, there []byte) {
	t.Helper()
	here := open(t, provider)
	slab, err := pool.NewSlab(pool.NewBudget(0), here, lateSize, pool.AccessRemoteWrite)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, slab.Close()) })
	mem, region := slab.Bytes(), slab.Region()

	exe, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(exe)
	cmd.Env, cmd.Stderr = append(os.Environ(), lateVar+"="+provider), os.Stderr
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	from := bufio.NewReader(stdout)
	var name []byte
	_, err = fmt.Fscanf(from, "%x\n", &name)
	require.NoError(t, err)
	here.peer, err = here.Insert(name)
	require.NoError(t, err)
	_, err = fmt.Fprintf(stdin, "%x %d %d\n", here.Name(), region.Base(), region.Key())
	require.NoError(t, err)

	reap := func() { _, _, _ = here.Exchange(nil, make([]fabric.Completion, 8)) }
	for deadline := time.Now().Add(timeout); !written(mem); reap() {
		require.True(t, time.Now().Before(deadline), "nothing is written")
	}
	line, err := from.ReadString('\n') // meanwhile nobody reaps on this side
	require.NoError(t, err)
	require.Equal(t, "full\n", line)
	require.NoError(t, cmd.Process.Signal(syscall.SIGSTOP))
	var status syscall.WaitStatus
	_, err = syscall.Wait4(cmd.Process.Pid, &status, syscall.WUNTRACED, nil)
	require.NoError(t, err)
	require.True(t, status.Stopped())
	for dry := 0; dry < 100; dry++ { // what was sent before arrives
		clear(mem)
		reap()
		if written(mem) {
			dry = 0
		}
	}

	require.NoError(t, here.Remove(here.peer))
	require.NoError(t, slab.Deregister())
	require.NoError(t, end(slab))
	at, err := unix.MmapPtr(-1, 0, unsafe.Pointer(unsafe.SliceData(mem)), lateSize,
		unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	require.NoError(t, err)
	others = unsafe.Slice((*byte)(at), lateSize)
	t.Cleanup(func() { assert.NoError(t, unix.MunmapPtr(at, lateSize)) })
	require.False(t, written(others))
	there = slab.Bytes()
	require.NoError(t, cmd.Process.Signal(syscall.SIGCONT))
	for deadline := time.Now().Add(time.Second); !written(others) && !written(there) && time.Now().Before(deadline); {
		reap()
	}
	return others, there
}

// TestLateWrites: a provider over TCP goes on with a write whose header it has read,
// even after the region is closed and the address is removed. If the memory is unmapped, the bytes
// show up in what is mapped there next. If it is retired, they do not.
func TestLateWrites(t *testing.T) {
	const most = 10
	for _, provider := range testenv.Shared() {
		if provider != testenv.Native && !strings.HasPrefix(provider, "tcp") {
			continue // devices do not use addresses of this process when data arrives
		}
		t.Run(provider, func(t *testing.T) {
			seen, rounds := false, 0
			for ; !seen && rounds < most; rounds++ {
				t.Run(fmt.Sprint("unmapped ", rounds), func(t *testing.T) {
					others, _ := lateRound(t, provider, (*pool.Slab).Close)
					seen = written(others)
				})
			}
			require.True(t, seen, "or this test proves nothing")
			seen = false
			for round := 0; round < rounds || !seen && round < most; round++ {
				t.Run(fmt.Sprint("retired ", round), func(t *testing.T) {
					others, there := lateRound(t, provider, (*pool.Slab).Retire)
					seen = seen || written(there)
					require.False(t, written(others), "bytes of a peer that was given up")
				})
			}
			require.True(t, seen, "late writes go to the sink")
		})
	}
}
