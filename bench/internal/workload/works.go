package workload

import (
	"fmt"
	"slices"
)

// The works that many peers do.
var (
	Lat64 = Case{Mode: ModeLat, Size: 64, Inflight: 1, Conns: 1}
	BW64K = Case{Mode: ModeBW, Size: 64 << 10, Inflight: 1, Conns: 1}
)

// Works combines modes with the sizes, conns and calls in flight that mean something to each.
func Works(modes []string, sizes, inflight, conns []int) ([]Case, error) {
	var works []Case
	for _, mode := range modes {
		ofMode, calls := sizes, []int{1}
		switch mode {
		case ModeLat, ModeBW:
		case ModeRPC:
			calls = inflight
		case ModeZC:
			for _, size := range sizes {
				if _, err := Stride(size); err != nil {
					return nil, err
				}
			}
		case ModeConn, ModeIdle, ModeFirst:
			ofMode = []int{1}
		case ModeHTTP:
			ofMode = []int{PageSize, BodySize}
		default:
			return nil, fmt.Errorf("unknown mode %q: have lat, bw, zc, rpc, http, conn, idle, and for one machine first and peers", mode)
		}
		for _, size := range ofMode {
			for _, n := range conns {
				for _, k := range calls {
					works = append(works, Case{Mode: mode, Size: size, Conns: n, Inflight: k})
				}
			}
		}
	}
	return works, nil
}

// PeersWorks returns one peer's work among each number of idle ones, the work of all of them at
// once, and what they cost when idle. The last is measured only for the largest number and for the
// largest that shared memory can have, since peers need seconds to give back what they do not use
// before their memory is read.
func PeersWorks(idle []int) (works []Case) {
	idle = slices.Compact(slices.Sorted(slices.Values(idle)))
	for _, w := range []Case{Lat64, BW64K} {
		for _, n := range idle {
			works = append(works, w.Among(n))
		}
	}
	for _, w := range []Case{Lat64, BW64K} {
		for _, n := range idle {
			if n > 0 { // 0 is there already
				works = append(works, w.By(n+1))
			}
		}
	}
	for i, n := range idle {
		last := i == len(idle)-1
		if n > 1 && (last || n <= ShmPeers && idle[i+1] > ShmPeers) {
			works = append(works, IdlePeers(n))
		}
	}
	return works
}

// What is fetched in mode http, in bytes: something small from memory, or a large file.
const (
	PageSize = 64
	BodySize = 1 << 30
)

// The stamps in what mode zc moves, in bytes: how large they are, and how far apart. Smaller messages
// have one each.
const (
	StampSize   = 8
	StampStride = 4 << 10
)

// Stride returns the distance of the stamps in messages of size bytes.
func Stride(size int) (int, error) {
	n := min(size, StampStride)
	if n < StampSize || size%n != 0 {
		return 0, fmt.Errorf("stamped messages of %d bytes: must be %d to %d, or a multiple of that", size, StampSize, StampStride)
	}
	return n, nil
}
