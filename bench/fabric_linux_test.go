//go:build cgo

package main

import "testing"

// These measurements use more of the fabric than the methods of net.Conn.
func TestMeasureOverSharedMemory(t *testing.T) {
	for _, c := range []cell{
		{Mode: modeLat, Size: 64, Inflight: 1, Conns: 1, OneCore: true},
		{Mode: modeBW, Size: 64 << 10, Inflight: 1, Conns: 3},
		{Mode: modeZC, Size: 1 << 20, Inflight: 1, Conns: 1},
		{Mode: modeZC, Size: 64, Inflight: 1, Conns: 1},
		{Mode: modeHTTP, Size: bodySize, Inflight: 1, Conns: 1},
		{Mode: modeIdle, Size: 1, Inflight: 1, Conns: 3},
	} {
		testMeasure(t, c.over(overShm))
	}
	testMeasure(t, bw64K.over(overFar))
}

func TestFanInOverFabrics(t *testing.T) {
	for _, v := range []carriage{overShm, overTCPRxm} {
		t.Run(v.provider, func(t *testing.T) { testFanIn(t, v) })
	}
}
