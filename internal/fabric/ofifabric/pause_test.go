//go:build linux && cgo

package ofifabric

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A provider with which it is never safe to sleep neither pins a processor nor
// outlasts the limit or Wake.
func TestWaitWhileNeverSafe(t *testing.T) {
	r, out, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	defer out.Close()
	w, err := waiterOn(int(r.Fd()), func() (bool, error) { return false, nil })
	require.NoError(t, err)
	defer w.close()

	const limit = 100 * time.Millisecond
	looks := 0
	never := func() bool { looks++; return false }
	require.NoError(t, w.Wait(never, limit))
	// yields, a few short pauses, and pauses of maxPause.
	assert.Less(t, looks, yields+10+int(limit/maxPause))

	ended := make(chan error, 1)
	go func() { ended <- w.Wait(func() bool { return false }, 0) }()
	w.Wake()
	select {
	case err := <-ended:
		require.NoError(t, err)
	case <-time.After(10 * time.Second):
		t.Fatal("Wake did not end the Wait")
	}
}
