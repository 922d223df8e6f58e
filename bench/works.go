package main

import (
	"fmt"
	"slices"
)

// The works that many peers do.
var (
	lat64 = cell{Mode: modeLat, Size: 64, Inflight: 1, Conns: 1}
	bw64K = cell{Mode: modeBW, Size: 64 << 10, Inflight: 1, Conns: 1}
)

// allWorks combines modes with the sizes, conns and calls in flight that mean
// something to each.
func allWorks(modes []string, sizes, inflight, conns []int) ([]cell, error) {
	var works []cell
	for _, mode := range modes {
		ofMode, calls := sizes, []int{1}
		switch mode {
		case modeLat, modeBW:
		case modeRPC:
			calls = inflight
		case modeZC:
			for _, size := range sizes {
				if _, err := stride(size); err != nil {
					return nil, err
				}
			}
		case modeConn, modeIdle, modeFirst:
			ofMode = []int{1}
		case modeHTTP:
			ofMode = []int{pageSize, bodySize}
		default:
			return nil, fmt.Errorf("unknown mode %q: have lat, bw, zc, rpc, http, conn, idle, and for one machine first and peers", mode)
		}
		for _, size := range ofMode {
			for _, n := range conns {
				for _, k := range calls {
					works = append(works, cell{Mode: mode, Size: size, Conns: n, Inflight: k})
				}
			}
		}
	}
	return works, nil
}

// peersWorks returns one peer's work among each number of idle ones, the work of all of them at
// once, and what they cost when idle. The last is measured only for the largest number and for the
// largest that shared memory can have, since peers need seconds to give back what they do not use
// before their memory is read.
func peersWorks(idle []int) (works []cell) {
	idle = slices.Compact(slices.Sorted(slices.Values(idle)))
	for _, w := range []cell{lat64, bw64K} {
		for _, n := range idle {
			works = append(works, w.among(n))
		}
	}
	for _, w := range []cell{lat64, bw64K} {
		for _, n := range idle {
			if n > 0 { // 0 is there already
				works = append(works, w.by(n+1))
			}
		}
	}
	for i, n := range idle {
		last := i == len(idle)-1
		if n > 1 && (last || n <= shmPeers && idle[i+1] > shmPeers) {
			works = append(works, idlePeers(n))
		}
	}
	return works
}

// What is fetched in mode http, in bytes: something small from memory, or a large file.
const (
	pageSize = 64
	bodySize = 1 << 30
)

// stride returns the distance of the stamps in messages of size bytes.
func stride(size int) (int, error) {
	n := min(size, stampStride)
	if n < stampSize || size%n != 0 {
		return 0, fmt.Errorf("stamped messages of %d bytes: must be %d to %d, or a multiple of that", size, stampSize, stampStride)
	}
	return n, nil
}
