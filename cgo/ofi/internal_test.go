//go:build linux && cgo

package ofi

import (
	"bytes"
	"math"
	"net/netip"
	"os"
	"os/signal"
	"reflect"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Hints can ask for one of a provider's fabrics.
func TestFabricIsAskedFor(t *testing.T) {
	list := InfoList{newHints(Hints{Provider: "efa", Fabric: "efa-direct"})}
	defer list.Free()
	assert.Equal(t, "efa", newInfo(list.head).Provider())
	assert.Equal(t, "efa-direct", newInfo(list.head).Fabric())
}

// Whatever a provider reports, sizes are never negative: they are clamped to math.MaxInt.
func TestSizesAreClamped(t *testing.T) {
	list := InfoList{newHints(Hints{})}
	defer list.Free()
	info := newInfo(list.head)
	for _, size := range []uint64{0, 1, 4096, math.MaxInt32 + 1, math.MaxInt, math.MaxInt + 1, math.MaxUint64 - 1, math.MaxUint64} {
		for _, field := range []any{
			&info.attr.inject_size, &info.attr.tx_size, &info.attr.rx_size, &info.attr.cq_data_size, &info.attr.max_msg_size,
		} {
			reflect.ValueOf(field).Elem().SetUint(size) // tests cannot use cgo, and so cannot name C's types
		}
		want := int(min(size, math.MaxInt))
		assert.Equal(t, []int{want, want, want, want},
			[]int{info.InjectSize(), info.TxSize(), info.RxSize(), info.CQDataSize()}, size)
		assert.Equal(t, size, info.MaxMsgSize())
	}
}

// handler returns what the kernel does on sig: 0 for the default, 1 to ignore
// it, or the address of a function.
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
	const sig = syscall.SIGABRT // with SIGHUP or SIGINT, Reset would restore Ignore
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

// Each host has its own number (scope) for a link that two of them share.
func TestInScope(t *testing.T) {
	name := func(ip string, scope uint32) []byte {
		sa := unix.RawSockaddrInet6{Family: unix.AF_INET6, Port: 7, Addr: netip.MustParseAddr(ip).As16(), Scope_id: scope}
		return bytes.Clone(unsafe.Slice((*byte)(unsafe.Pointer(&sa)), unsafe.Sizeof(sa)))
	}
	four := bytes.Clone(name("::", 0)[:16])
	four[0], four[4], four[5] = unix.AF_INET, 169, 254 // also link-local
	for _, tt := range []struct{ own, peer, want []byte }{
		{name("fe80::1", 3), name("fe80::2", 9), name("fe80::2", 3)},
		{name("fe80::1", 3), name("fe80::2", 0), name("fe80::2", 3)},
		{name("fd00::1", 0), name("fe80::2", 9), name("fe80::2", 9)},
		{name("fe80::1", 3), name("fd00::2", 0), name("fd00::2", 0)},
		{four, four, four},
	} {
		assert.Equal(t, tt.want, inScope(tt.own, bytes.Clone(tt.peer)))
	}
	assert.Equal(t, "fe80::2%9", sockaddrIP(name("fe80::2", 9)).String())
	assert.Equal(t, "fd00::2", sockaddrIP(name("fd00::2", 9)).String())
}
