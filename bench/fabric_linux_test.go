//go:build cgo

package main

import "testing"

// The works that do more over the fabric than net.Conn's methods.
func TestMeasureOverSharedMemory(t *testing.T) {
	for _, c := range []cell{
		{Mode: modeLat, Size: 64, Inflight: 1, Conns: 1, OneCore: true},
		{Mode: modeBW, Size: 64 << 10, Inflight: 1, Conns: 3},
		{Mode: modeZC, Size: 1 << 20, Inflight: 1, Conns: 1},
		{Mode: modeZC, Size: 64, Inflight: 1, Conns: 1},
		{Mode: modeIdle, Size: 1, Inflight: 1, Conns: 3},
	} {
		testMeasure(t, c.over(overShm))
	}
}
