package bootstrap

import (
	"encoding/binary"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A page is not used if its creator cannot be reached by the process number in it.
func TestOpenPageRefusesStrangers(t *testing.T) {
	for name, tt := range map[string]struct {
		offset int
		value  uint64
		err    string
	}{
		"namespace": {selfNamespace, 1, "different PID namespaces"},
		"number":    {selfNumber, 1 << 30, "gives 1073741824, which is no process's number"},
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
// files: /proc takes those, too.
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
	err = dialer.meet()
	require.ErrorIs(t, err, errPage)
	require.ErrorContains(t, err, "no process's number")
}

// A peer that gives the process number of this process would have this side open its own files. It is
// believed only if it is in this process.
func TestOwnNumber(t *testing.T) {
	dialer, err := CreatePage()
	require.NoError(t, err)
	defer dialer.Close()
	ownPages.Delete(dialer.nonce) // as if another process had made it
	_, err = OpenPage(dialer.name, dialer.nonce)
	require.ErrorIs(t, err, errPage)
	require.ErrorContains(t, err, "the dialer gives the process number of the listener")
	copy(dialer.peerSelf, dialer.ownSelf)
	err = dialer.meet()
	require.ErrorIs(t, err, errPage)
	require.ErrorContains(t, err, "the listener gives the process number of the dialer")
}
