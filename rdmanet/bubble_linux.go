package rdmanet

import (
	"syscall"
	"time"
)

// bubbled reports whether the caller is in a bubble of testing/synctest, where the time is another
// than the kernel's.
func bubbled() bool {
	const near = time.Second
	for range 3 { // the process may be stopped between the two looks
		if apart := time.Until(kernelTime()); -near < apart && apart < near {
			return false
		}
	}
	return true
}

func kernelTime() time.Time {
	var tv syscall.Timeval
	_ = syscall.Gettimeofday(&tv) // never fails
	return time.Unix(tv.Unix())
}
