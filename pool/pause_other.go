//go:build !linux

package pool

import "time"

// pause lets others run.
func pause(d time.Duration) { time.Sleep(d) }
