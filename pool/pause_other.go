//go:build !linux

package pool

import "time"

// pause lets other goroutines and threads run.
func pause(d time.Duration) { time.Sleep(d) }
