//go:build linux && cgo

package ofi_test

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed202c38ff/fabricnet/cgo/ofi"
	"github.com/seed202c38ff/fabricnet/internal/testenv"
)

const timeout = 10 * time.Second

// ofifabric makes these settings from its table of quirks. Tests of the binding by itself
// have to make them.
func TestMain(m *testing.M) {
	ofi.Setenv("FI_MR_CACHE_MONITOR", "disabled")
	ofi.Setenv("FI_UNIVERSE_SIZE", "64")  // Soft-RoCE has no larger queue
	ofi.Setenv("FI_OFI_RXM_USE_SRX", "1") // ofi_rxm over verbs crashes otherwise
	os.Exit(m.Run())
}

func mapped(t *testing.T, size int) []byte {
	mem, err := syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE,
		syscall.MAP_ANON|syscall.MAP_PRIVATE)
	require.NoError(t, err)
	t.Cleanup(func() { _ = syscall.Munmap(mem) })
	return mem
}

// outside returns the text in memory outside the Go heap.
func outside(t *testing.T, text string) []byte {
	mem := mapped(t, len(text))
	copy(mem, text)
	return mem
}

type side struct {
	*ofi.Endpoint
	t     *testing.T
	batch *ofi.Batch
	peer  ofi.Addr
	got   []ofi.Completion
}

func open(t *testing.T, provider string) *side {
	hints := ofi.Hints{Provider: provider, CQDataSize: 4}
	if hints.Provider != "shm" {
		hints.Source = testenv.Host()
	}
	list, err := ofi.GetInfo(hints)
	require.NoError(t, err)
	defer list.Free()
	for info := range list.All() {
		ep, err := ofi.Open(info, ofi.Options{
			LockRegions: true,                                     // what libfabric 1.17 and 1.18 need
			SlashOwn:    fmt.Sprintf("fi_shm://%d:", os.Getpid()), // what libfabric needs from 2.5 on, and others do not mind
		})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, ep.Close()) })
		batch, err := ofi.NewBatch()
		require.NoError(t, err)
		t.Cleanup(batch.Free)
		return &side{Endpoint: ep, t: t, batch: batch}
	}
	t.Fatal("an empty list without an error")
	return nil
}

// pair is two endpoints that know each other.
func pair(t *testing.T, provider string) (a, b *side) {
	a, b = open(t, provider), open(t, provider)
	var err error
	a.peer, err = a.Insert(b.Name())
	require.NoError(t, err)
	b.peer, err = b.Insert(a.Name())
	require.NoError(t, err)
	return a, b
}

func (s *side) exchange(op *ofi.Op) bool {
	s.batch.Reset()
	if op != nil {
		require.True(s.t, s.batch.Add(op))
	}
	posted, reaped, postErr, reapErr := s.Exchange(s.batch, ofi.BatchDone)
	require.NoError(s.t, postErr)
	require.NoError(s.t, reapErr)
	for i := range reaped {
		s.got = append(s.got, s.batch.Completion(i))
	}
	return posted == 1
}

func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(timeout); !done(); runtime.Gosched() {
		require.True(t, time.Now().Before(deadline), what)
	}
}

func (s *side) post(other *side, op ofi.Op) {
	s.t.Helper()
	until(s.t, "cannot post", func() bool {
		other.exchange(nil)
		return s.exchange(&op)
	})
}

func TestReceive(t *testing.T) {
	for _, provider := range testenv.Providers() {
		t.Run(provider, func(t *testing.T) {
			a, b := pair(t, provider)
			const size, messages = 50, 20
			bufs := mapped(t, size*messages)
			for i := range uint32(messages) {
				b.post(a, ofi.Op{Kind: ofi.Recv, Tag: i, Buf: bufs[i*size:][:size]})
			}
			text := mapped(t, size)
			for i := range messages {
				for j := range text {
					text[j] = byte(i)
				}
				a.post(b, ofi.Op{Kind: ofi.Inject, To: a.peer, Buf: text[:size-i]})
			}
			until(t, "a message is missing", func() bool {
				a.exchange(nil)
				b.exchange(nil)
				return len(b.got) == messages
			})
			for i, c := range b.got {
				assert.Equal(t, ofi.Completion{Kind: ofi.Recv, Tag: uint32(i), Len: size - i}, c)
				assert.Equal(t, bytes.Repeat([]byte{byte(i)}, size-i), bufs[i*size:][:size-i])
			}
			assert.Empty(t, a.got, "of injects")
		})
	}
}

func TestWrite(t *testing.T) {
	for _, provider := range testenv.Providers() {
		t.Run(provider, func(t *testing.T) {
			a, b := pair(t, provider)
			target := mapped(t, 4096)
			region, err := b.Register(target, ofi.AccessRemoteWrite)
			require.NoError(t, err)
			defer func() { require.NoError(t, region.Close()) }()
			assert.NotZero(t, region.Key())
			source := outside(t, "written")
			local, err := a.Register(source, ofi.AccessLocal)
			require.NoError(t, err)
			defer func() { require.NoError(t, local.Close()) }()
			a.post(b, ofi.Op{
				Kind: ofi.Write, Tag: 7, To: a.peer, Buf: source, Desc: local.Desc(),
				Remote: region.Base() + 100, Key: region.Key(),
			})
			until(t, "the bytes do not arrive, or nothing says that they have left", func() bool {
				a.exchange(nil)
				b.exchange(nil)
				return string(target[100:107]) == "written" && len(a.got) > 0
			})
			require.Len(t, a.got, 1)
			assert.NoError(t, a.got[0].Err)
			assert.Equal(t, []any{ofi.Write, uint32(7)}, []any{a.got[0].Kind, a.got[0].Tag})
			assert.Empty(t, b.got)
		})
	}
}

// disposition has the fields of the kernel's struct sigaction that matter here.
type disposition struct{ handler, flags, restorer, mask uint64 }

// initial is recorded before any test runs: providers install their handlers only
// once per process.
var initial = dispositions()

func dispositions() map[syscall.Signal]disposition {
	all := make(map[syscall.Signal]disposition)
	for sig := syscall.Signal(1); sig < 32; sig++ {
		var d disposition
		_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), 0,
			uintptr(unsafe.Pointer(&d)), unsafe.Sizeof(d.mask), 0, 0)
		const restorer = 0x04000000 // SA_RESTORER
		d.restorer = 0              // libc sets its own, even for an ignored signal, such as SIGINT in a background job
		d.flags &^= restorer
		all[sig] = d
	}
	return all
}

func TestSignalHandlersSurvive(t *testing.T) {
	require.NotZero(t, initial[syscall.SIGSEGV].handler)
	open(t, "shm")
	assert.Equal(t, initial, dispositions())
}

func TestNothingFound(t *testing.T) {
	_, err := ofi.GetInfo(ofi.Hints{Provider: "nonesuch"})
	require.ErrorIs(t, err, syscall.ENODATA)
	assert.ErrorContains(t, err, "fi_getinfo")
}

// TestRegisterLocal: memory that no peer may write to needs no key.
func TestRegisterLocal(t *testing.T) {
	for _, provider := range testenv.Providers() {
		t.Run(provider, func(t *testing.T) {
			region, err := open(t, provider).Register(mapped(t, 4096), ofi.AccessLocal)
			require.NoError(t, err)
			require.NoError(t, region.Close())
		})
	}
}

func TestRegisterNothing(t *testing.T) {
	_, err := open(t, "shm").Register(nil, ofi.AccessRemoteWrite)
	require.ErrorIs(t, err, syscall.EINVAL)
}

// With make LIBFABRIC=prefix, both headers and library come from that prefix.
func TestVersions(t *testing.T) {
	assert.Regexp(t, `^\d+\.\d+$`, ofi.CompiledVersion())
	assert.Regexp(t, `^\d+\.\d+\.\d+`, ofi.LibraryVersion())
	assert.FileExists(t, ofi.LibraryPath())
	if prefix := os.Getenv("LIBFABRIC"); prefix != "" {
		assert.True(t, strings.HasPrefix(ofi.LibraryVersion(), ofi.CompiledVersion()+"."), ofi.LibraryVersion())
		assert.True(t, strings.HasPrefix(ofi.LibraryPath(), prefix), ofi.LibraryPath())
	}
}
