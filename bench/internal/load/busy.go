package load

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"runtime"

	"github.com/seed202c38ff/fabricnet/bench/internal/workload"
)

// roleLoad is the role of a process that does nothing but compute, on one thread for each CPU: what
// a busy host does besides the two processes that are measured.
const roleLoad = "load"

// playLoad computes until the standard input ends.
func playLoad(in io.Reader, out *json.Encoder) error {
	done := make(chan struct{})
	for range runtime.NumCPU() {
		go func() {
			for x := uint64(1); ; {
				select {
				case <-done:
					return
				default:
				}
				for range 100_000 {
					x ^= x << 13
					x ^= x >> 7
					x ^= x << 17
				}
			}
		}()
	}
	if err := out.Encode(reply{}); err != nil {
		return err
	}
	_, err := io.Copy(io.Discard, in)
	close(done)
	return err
}

// besideLoad measures j by calling f, on a busy host if j asks for one.
func besideLoad(ctx context.Context, program string, j Job, f func() (workload.Sample, error)) (s workload.Sample, err error) {
	if !j.Load {
		return f()
	}
	load, err := start(ctx, program, roleLoad, j)
	if err != nil {
		return workload.Sample{}, err
	}
	defer func() { err = errors.Join(err, load.stop()) }()
	if _, err := load.receive(); err != nil {
		return workload.Sample{}, err
	}
	return f()
}
