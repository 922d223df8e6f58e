//go:build cgo

package ofifabric

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed202c38ff/fabricnet/internal/shmdir"
	"github.com/seed202c38ff/fabricnet/internal/testenv"
)

// Room that another endpoint of this process is about to take does not count as free.
func TestRoomIsCounted(t *testing.T) {
	if !testenv.OwnShm(t, fmt.Sprintf("size=%d", shmdir.PerEndpoint*3/2)) {
		return
	}
	done, err := roomForRegion()
	require.NoError(t, err)
	_, err = roomForRegion()
	require.ErrorIs(t, err, unix.ENOSPC)
	done()
	done, err = roomForRegion()
	require.NoError(t, err)
	done()
}
