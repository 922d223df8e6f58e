package load

import (
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/bench/internal/workload"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

func TestAbsentProvidersComeWithTheReason(t *testing.T) {
	have, absent := try([]string{"shm", "net", "verbs", "efa", "cxi"}, func(provider string) error {
		switch provider {
		case "shm":
			return &net.OpError{Op: "listen", Net: "rdma", Err: fmt.Errorf("%w: no room", rdmanet.ErrProviderUnavailable)}
		case "verbs":
			return errors.New("broken")
		case "efa", "cxi":
			return rdmanet.ErrProviderUnavailable
		}
		return nil
	})
	assert.Equal(t, []string{"net"}, have)
	assert.Equal(t, "not measured: rdma/shm: "+rdmanet.ErrProviderUnavailable.Error()+": no room\n"+
		"not measured: rdma/verbs: broken\nnot on this machine: rdma/efa, rdma/cxi", notMeasured(absent))
}

func TestWithoutLibfabricOneReasonDoes(t *testing.T) {
	calls := 0
	have, absent := try(candidates, func(string) error {
		calls++
		return &net.OpError{Op: "listen", Net: "rdma", Err: rdmanet.ErrUnsupported}
	})
	assert.Empty(t, have)
	require.Len(t, absent, 1)
	assert.Contains(t, notMeasured(absent), rdmanet.ErrUnsupported.Error())
	assert.Equal(t, 1, calls)
}

func TestDialsAreBoundedOverAllWorkers(t *testing.T) {
	var dials atomic.Int64
	dial := func() (net.Conn, error) {
		dials.Add(1)
		return echoed{}, nil
	}
	for _, conns := range []int{1, 7, 1024} {
		dials.Store(0)
		m := &meter{transport: new(socket)}
		workers, closeAll, err := openWorkers(t.Context(), Job{Case: workload.Case{Mode: workload.ModeConn, Size: 1, Conns: conns}}, dial, m)
		require.NoError(t, err)
		for range 2 { // to warm up, and to measure
			s, _, err := workTogether(workers, time.Minute, m)
			require.NoError(t, err)
			assert.Positive(t, s.Ops)
		}
		assert.LessOrEqual(t, dials.Load(), int64(maxDials))
		assert.Greater(t, dials.Load(), int64(maxDials*9/10))
		require.NoError(t, closeAll())
	}
}

// echoed is a conn that accepts all bytes and returns as many as are asked for.
type echoed struct{ net.Conn }

func (echoed) Write(b []byte) (int, error) { return len(b), nil }
func (echoed) Read(b []byte) (int, error)  { return len(b), nil }
func (echoed) Close() error                { return nil }
