//go:build linux && cgo

package ofi

import (
	"os"
	"os/signal"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Providers report FI_MULTI_RECV unasked, but one that lacks it must not be
// left out unless it was asked for.
func TestMultiRecvIsOptional(t *testing.T) {
	for _, want := range []bool{false, true} {
		list := InfoList{newHints(Hints{MultiRecv: want})}
		assert.Equal(t, want, newInfo(list.head).MultiRecv())
		list.Free()
	}
}

// Small devices' queues limit the number of peers, large ones' do not.
func TestUniverse(t *testing.T) {
	for entries, want := range map[int]string{
		0: "", -1: "", // nothing tells
		32767:   "127", // Soft-RoCE
		100:     "1",
		4194303: "", // mlx5
	} {
		assert.Equal(t, want, universeFor(entries), entries)
	}
}

// efa-direct is asked for as a fabric of efa, and seen as a provider.
func TestEFADirect(t *testing.T) {
	for _, name := range []string{"efa", "efa-direct", "shm"} {
		list := InfoList{newHints(Hints{Provider: name})}
		assert.Equal(t, name, newInfo(list.head).Provider())
		list.Free()
	}
	list := InfoList{newHints(Hints{Provider: "efa-direct"})}
	defer list.Free()
	assert.Equal(t, "efa-direct", newInfo(list.head).Fabric())
}

// handler returns what the kernel does on sig: 0 for the default, 1 to ignore
// it, or a function's address.
func handler(t *testing.T, sig syscall.Signal) uintptr {
	var action struct {
		handler               uintptr
		flags, restorer, mask uint64
	}
	_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), 0,
		uintptr(unsafe.Pointer(&action)), unsafe.Sizeof(action.mask), 0, 0)
	require.Zero(t, errno)
	return action.handler
}

func TestSignalChangesDuringAnOpenStay(t *testing.T) {
	const sig = syscall.SIGABRT // for SIGHUP and SIGINT Reset would come back to Ignore
	const ignored = 1
	defer signal.Reset(sig)
	before := handler(t, sig)
	require.Greater(t, before, uintptr(ignored), "Go catches it from the start")

	restore := holdSignals()
	signal.Ignore(sig)
	restore()
	assert.EqualValues(t, ignored, handler(t, sig))

	restore = holdSignals()
	signal.Notify(make(chan os.Signal, 1), sig)
	restore()
	assert.Equal(t, before, handler(t, sig))
}
