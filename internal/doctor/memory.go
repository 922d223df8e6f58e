package doctor

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/seed202c38ff/fabricnet/internal/shmdir"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// limit reads the soft limit from a line of /proc/self/limits, such as
// "Max open files  1024  4096  files".
func (m *Machine) limit(name string) (soft uint64, unlimited, ok bool) {
	text, _ := m.text("proc/self/limits")
	for line := range strings.Lines(text) {
		rest, found := strings.CutPrefix(line, name)
		fields := strings.Fields(rest)
		if !found || len(fields) < 2 {
			continue
		}
		if fields[0] == "unlimited" {
			return 0, true, true
		}
		n, err := strconv.ParseUint(fields[0], 10, 64)
		return n, false, err == nil
	}
	return 0, false, false
}

// queueMemory is how much memory an endpoint of a device may lock besides that for data: its
// queues, for FI_UNIVERSE_SIZE peers. It is in bytes.
const queueMemory = 128 << 20

// lockedMemory checks RLIMIT_MEMLOCK: memory that a device reads must stay where it is, and so is
// locked.
func lockedMemory(m *Machine) Finding {
	f := Finding{Check: "locked memory"}
	const enough = rdmanet.DefaultMemoryLimit + queueMemory
	n, unlimited, ok := m.limit("Max locked memory")
	device := len(m.names(classInfiniband)) > 0
	switch {
	case !ok:
		f.Verdict, f.Found = Unknown, "/proc/self/limits does not tell"
	case unlimited:
		f.Found = "unlimited"
	case m.capable(capIPCLock) && m.initial("user"):
		f.Found = fmt.Sprintf("limited to %s, but CAP_IPC_LOCK lifts that", mib(n))
	case !device:
		f.Found = fmt.Sprintf("limited to %s, and there is no RDMA device that needs any", mib(n))
	case n >= enough:
		f.Found = fmt.Sprintf("limited to %s, %s are needed", mib(n), mib(enough))
	default:
		f.Verdict = Fail
		f.Found = fmt.Sprintf("limited to %s, and RDMA devices need up to %s", mib(n), mib(enough))
		f.Advice = "Raise it with ulimit -l unlimited, LimitMEMLOCK=infinity in a systemd unit, memlock in /etc/security/limits.conf, or docker --ulimit memlock=-1."
	}
	return f
}

// sharedMemory checks /dev/shm.
func sharedMemory(m *Machine) Finding {
	f := Finding{Check: "/dev/shm"}
	kind, options, mounted := m.mount("/dev/shm")
	need := uint64(m.CPUs)*shmdir.PerCPU + shmdir.PerEndpoint // for the second endpoint of a pair, beside the first
	free, err := m.Space("/dev/shm")
	usable, safe := m.Usable("/dev/shm"), m.Safe("/dev/shm")
	f.Found = fmt.Sprintf("%s free, %s are needed", mib(free), mib(need))
	switch {
	case err != nil:
		f.Verdict, f.Found, f.Advice = Warn, err.Error(), "Mount a tmpfs there: mount -t tmpfs tmpfs /dev/shm."
	case mounted && strings.Contains(","+options+",", ",ro,"):
		f.Verdict, f.Found, f.Advice = Warn, "it is mounted read-only", "Mount it for writing: mount -o remount,rw /dev/shm."
	case usable != nil:
		f.Verdict, f.Found, f.Advice = Warn, usable.Error(), "Let all users make files there: chmod 1777 /dev/shm."
	case safe != nil:
		f.Verdict, f.Found, f.Advice = Warn, safe.Error(), "Shared memory is not used there: chown root /dev/shm, chmod 1777 /dev/shm."
	case free < need:
		f.Verdict = Warn
		f.Advice = "Enlarge it (mount -o remount,size=..., docker --shm-size=..., a memory-backed emptyDir in Kubernetes), or remove stale files from it."
	case !mounted || kind != "tmpfs":
		f.Verdict = Warn
		f.Found += fmt.Sprintf(", but it is %s and no tmpfs", orWord(kind, "part of another file system"))
		f.Advice = "Mount a tmpfs there: shared memory in files of a disk is written to it."
	}
	return f
}

// mount finds the file system that is mounted at a directory, in /proc/self/mountinfo. A line is
// "36 35 98:0 / /dev/shm rw,noexec shared:1 - tmpfs shm rw,size=65536k".
func (m *Machine) mount(dir string) (kind, options string, ok bool) {
	text, _ := m.text("proc/self/mountinfo")
	for line := range strings.Lines(text) {
		own, super, _ := strings.Cut(line, " - ")
		fields, rest := strings.Fields(own), strings.Fields(super)
		if len(fields) < 6 || len(rest) < 3 || fields[4] != dir {
			continue
		}
		kind, options, ok = rest[0], fields[5]+","+rest[2], true // the last one hides the others
	}
	return kind, options, ok
}

// hugePages checks huge pages: rdmanet asks for transparent ones, but needs none.
func hugePages(m *Machine) Finding {
	f := Finding{Check: "huge pages"}
	free := "0"
	text, _ := m.text("proc/meminfo")
	for line := range strings.Lines(text) {
		if n, found := strings.CutPrefix(line, "HugePages_Free:"); found {
			free = strings.TrimSpace(n)
		}
	}
	mode, ok := m.text("sys/kernel/mm/transparent_hugepage/enabled") // "always [madvise] never"
	_, mode, _ = strings.Cut(mode, "[")
	mode, _, _ = strings.Cut(mode, "]")
	switch {
	case !ok:
		f.Verdict, f.Found = Unknown, "the kernel does not say whether it has transparent ones"
	case mode == "never":
		f.Verdict, f.Found = Warn, "transparent ones are off"
		f.Advice = "Allow them, which makes large writes over shared memory faster: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled."
	default:
		f.Found = fmt.Sprintf("transparent ones: %s; %s reserved ones are free, of which rdmanet needs none", mode, free)
	}
	return f
}

func mib(n uint64) string {
	if n < 10<<20 {
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d MiB", n>>20)
}
