package progress

import "golang.org/x/sys/unix"

// yieldThread lets another thread run that wants this one's processor (sched_yield(2)).
// Go's scheduler may give what this one holds to others meanwhile.
func yieldThread() { _, _, _ = unix.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }
