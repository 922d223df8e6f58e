package bootstrap

import (
	"encoding/binary"
	"os"
	"strconv"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A page is not used if its creator cannot be reached by the process number in it.
func TestOpenPageRefusesStrangers(t *testing.T) {
	others := make([]byte, 16)
	for name, tt := range map[string]struct {
		offset int
		value  uint64
		err    string
	}{
		"namespace": {selfNamespace, 1, "different PID namespaces"},
		"number":    {selfNumber, 1 << 30, "gives 1073741824, which is no process's number"},
		"address":   {selfAddress, 8, "is not the other side: process_vm_readv: bad address"},
		"contents":  {selfAddress, uint64(uintptr(unsafe.Pointer(&others[0]))), "is not the other side"},
	} {
		t.Run(name, func(t *testing.T) {
			a, err := CreatePage()
			require.NoError(t, err)
			defer a.Close()
			binary.LittleEndian.PutUint64(a.ownSelf[tt.offset:], tt.value)
			_, err = OpenPage(a.name, a.nonce)
			require.ErrorIs(t, err, errPage)
			assert.ErrorContains(t, err, tt.err)
		})
	}
}

// A peer that gives the number of one of this process's threads would have this side open its own
// files: /proc and process_vm_readv(2) take those, too.
func TestOwnThread(t *testing.T) {
	threads, err := os.ReadDir("/proc/self/task")
	require.NoError(t, err)
	number, err := strconv.Atoi(threads[len(threads)-1].Name())
	require.NoError(t, err)
	require.NotEqual(t, os.Getpid(), number)
	dialer, err := CreatePage()
	require.NoError(t, err)
	defer dialer.Close()
	copy(dialer.peerSelf, dialer.ownSelf)
	binary.LittleEndian.PutUint64(dialer.peerSelf[selfNumber:], uint64(number))
	binary.LittleEndian.PutUint64(dialer.peerSelf[selfVerdict:], mayRead)
	err = dialer.meet()
	require.ErrorIs(t, err, errPage)
	require.ErrorContains(t, err, "no process's number")
}

// A peer that gives the process number of this process would have this side open its own files. It is
// believed only if it is in this process.
func TestOwnNumber(t *testing.T) {
	const refused = "the other side gives the process number of this one"
	dialer, err := CreatePage()
	require.NoError(t, err)
	defer dialer.Close()
	ownPages.Delete(dialer.nonce) // as if another process had made it
	_, err = OpenPage(dialer.name, dialer.nonce)
	require.ErrorIs(t, err, errPage)
	require.ErrorContains(t, err, refused, "by the listening side")
	copy(dialer.peerSelf, dialer.ownSelf)
	err = dialer.meet()
	require.ErrorIs(t, err, errPage)
	require.ErrorContains(t, err, refused, "by the dialling side")
}

// The dialling side uses a page only if both sides may read each other's memory.
func TestMeet(t *testing.T) {
	for name, tt := range map[string]struct {
		verdict uint64 // of the listening side
		err     string
	}{
		"both may":    {mayRead, ""},
		"one may":     {mayNotRead, "only one of the two sides"},
		"not a word":  {0, "only one of the two sides"},
		"not so many": {mayRead + 1, "only one of the two sides"},
	} {
		t.Run(name, func(t *testing.T) {
			a, err := CreatePage()
			require.NoError(t, err)
			defer a.Close()
			b, err := OpenPage(a.name, a.nonce)
			require.NoError(t, err)
			defer b.Close()
			require.EqualValues(t, mayRead, binary.LittleEndian.Uint64(b.ownSelf[selfVerdict:]))
			binary.LittleEndian.PutUint64(b.ownSelf[selfVerdict:], tt.verdict)
			if err = a.meet(); tt.err == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, errPage)
			assert.ErrorContains(t, err, tt.err)
		})
	}
}
