//go:build unix

package load

import (
	"syscall"
	"time"
)

// cpuTime returns the user and system time that this process has used, as counted by getrusage(2).
func cpuTime() (time.Duration, error) {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0, err
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), nil
}
