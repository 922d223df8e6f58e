package progress

import "golang.org/x/sys/unix"

// yieldThread lets another thread that wants this one's processor run (sched_yield(2)). Meanwhile
// Go's scheduler may hand what this thread holds, its P, to another one.
func yieldThread() { _, _, _ = unix.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }
