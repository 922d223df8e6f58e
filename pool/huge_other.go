//go:build !linux

package pool

import "time"

func adviseHuge([]byte) {}

func adviseSmall([]byte) {}

func pause(d time.Duration) { time.Sleep(d) }
