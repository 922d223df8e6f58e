//go:build linux && cgo

package ofifabric

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// With a provider for which it is never safe to sleep, Wait does not keep a processor busy, and it
// ends with its limit and with Wake.
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
	// Wait yields, then pauses shortly a few times, and from then on pauses for maxPause each time.
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
