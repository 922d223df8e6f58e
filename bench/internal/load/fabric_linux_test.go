//go:build cgo

package load

import (
	"testing"

	"github.com/seed202c38ff/fabricnet/bench/internal/workload"
)

// These measurements use more of the fabric than the methods of net.Conn.
func TestMeasureOverSharedMemory(t *testing.T) {
	for _, c := range []workload.Case{
		{Mode: workload.ModeLat, Size: 64, Inflight: 1, Conns: 1, OneCore: true},
		{Mode: workload.ModeBW, Size: 64 << 10, Inflight: 1, Conns: 3},
		{Mode: workload.ModeZC, Size: 1 << 20, Inflight: 1, Conns: 1},
		{Mode: workload.ModeZC, Size: 64, Inflight: 1, Conns: 1},
		{Mode: workload.ModeHTTP, Size: workload.BodySize, Inflight: 1, Conns: 1},
		{Mode: workload.ModeIdle, Size: 1, Inflight: 1, Conns: 3},
	} {
		testMeasure(t, c.Over(workload.Shm))
	}
}

func TestFanInOverFabrics(t *testing.T) {
	for _, v := range []workload.Transport{workload.Shm, workload.TCPRxm} {
		t.Run(v.Provider, func(t *testing.T) { testFanIn(t, v) })
	}
}
