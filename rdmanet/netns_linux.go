package rdmanet

import (
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// threadNetns returns the namespace of the calling thread, which only means something to a
// goroutine that is locked to it, or if all threads are in one.
func threadNetns() netns {
	if n := onlyNetns(); n != 0 {
		return n
	}
	return netnsAt(threadNetnsLink)
}

// onlyNetns is the namespace of all threads if none of them can ever leave it, otherwise 0. Dials
// over tcp;ofi_rxm take a tenth longer if each of them has to ask for its thread's.
//
// To leave it takes CAP_SYS_ADMIN, which a thread gets only from its parent or by execve(2), but
// for one in a new user namespace, and a process with several threads cannot enter that: see
// setns(2), unshare(2), capabilities(7) and user_namespaces(7).
var onlyNetns = sync.OnceValue(func() (n netns) {
	const tasks = "/proc/self/task/"
	threads, _ := os.ReadDir(tasks)
	for _, thread := range threads {
		status, _ := os.ReadFile(tasks + thread.Name() + "/status")
		_, permitted, _ := strings.Cut(string(status), "\nCapPrm:\t")
		permitted, _, _ = strings.Cut(permitted, "\n")
		caps, err := strconv.ParseUint(permitted, 16, 64)
		// Only now: where a thread without the capability is, it stays.
		at := netnsAt([]byte(tasks + thread.Name() + "/ns/net\x00"))
		if err != nil || caps&(1<<unix.CAP_SYS_ADMIN) != 0 || at == 0 || n != 0 && n != at {
			return 0
		}
		n = at
	}
	return n
})

// threadNetnsLink is where the kernel says in which namespace a thread is: see namespaces(7).
var threadNetnsLink = []byte("/proc/thread-self/ns/net\x00")

// netnsAt reads such a link, whose name ends with a zero. readlink(2) takes a tenth of what stat(2)
// of the namespace does and, since it does not block, need not be told to Go's scheduler, which
// takes half as long again.
func netnsAt(link []byte) netns {
	var buf [32]byte
	const anyDir = 0 // the path is absolute
	n, _, errno := syscall.RawSyscall6(syscall.SYS_READLINKAT, anyDir,
		uintptr(unsafe.Pointer(&link[0])), uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf)), 0, 0)
	if errno != 0 {
		return 0 // without /proc, or in a sandbox
	}
	number, _ := strings.CutPrefix(string(buf[:n]), "net:[")
	ino, _ := strconv.ParseUint(strings.TrimSuffix(number, "]"), 10, 64)
	return netns(ino)
}
