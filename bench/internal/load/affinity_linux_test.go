package load

import (
	"errors"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestOneCoreIsOfTheThreadThatStarts(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cpus := func() unix.CPUSet {
		var set unix.CPUSet
		require.NoError(t, unix.SchedGetaffinity(0, &set))
		return set
	}
	before := cpus()
	failed := errors.New("failed")
	assert.ErrorIs(t, onOneCore(func() error {
		set := cpus()
		assert.Equal(t, 1, set.Count())
		return failed
	}), failed)
	assert.Equal(t, before, cpus())
}
