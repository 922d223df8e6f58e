package doctor

import (
	"fmt"
	"io/fs"
	"math"
	"path"
	"strconv"
	"strings"
)

// Bits of capabilities(7).
const (
	capIPCLock = 14
)

// capable reports whether the process has a capability.
func (m *Machine) capable(bit int) bool {
	set, err := strconv.ParseUint(m.status("CapEff"), 16, 64)
	return err == nil && set&(1<<bit) != 0
}

// initialNamespace has the numbers of the namespaces that the kernel starts with (linux/proc_ns.h).
var initialNamespace = map[string]string{"pid": "pid:[4026531836]", "user": "user:[4026531837]"}

// initial reports whether the process is in the initial namespace of a kind.
func (m *Machine) initial(kind string) bool {
	link, err := fs.ReadLink(m.Root, "proc/self/ns/"+kind)
	return err == nil && link == initialNamespace[kind]
}

// namespaces checks whether namespaces keep containers from sharing memory.
func namespaces(m *Machine) Finding {
	f := Finding{Check: "namespaces"}
	_, pidErr := fs.ReadLink(m.Root, "proc/self/ns/pid")
	_, userErr := fs.ReadLink(m.Root, "proc/self/ns/user")
	switch pid, user := m.initial("pid"), m.initial("user"); {
	case pidErr != nil || userErr != nil:
		f.Verdict, f.Found = Unknown, "/proc/self/ns does not tell"
	case pid && user:
		f.Found = "those of the host"
	case !pid:
		f.Verdict, f.Found = Warn, "a PID namespace of its own: shm reaches processes in the same one only"
		f.Advice = "Let containers that are to share memory share it and /dev/shm (docker --pid=host --ipc=host; shareProcessNamespace within a pod)."
	default:
		f.Found = "a user namespace of its own: shm needs the same one on both sides"
	}
	return f
}

// processors compares the processors that Go uses with those that the control group allows:
// goroutines that poll use up what others need.
func processors(m *Machine) Finding {
	f := Finding{Check: "processors", Found: fmt.Sprintf("%d, GOMAXPROCS %d", m.CPUs, m.MaxProcs)}
	quota, ok := m.quota()
	if !ok {
		f.Verdict, f.Found = Unknown, f.Found+", and a quota that cannot be read"
		return f
	}
	if quota < math.MaxInt32 {
		f.Found += fmt.Sprintf(", a quota of %.4g", quota)
	}
	switch {
	case float64(m.MaxProcs) > math.Max(2, math.Ceil(quota)):
		f.Verdict = Warn
		f.Advice = "Set GOMAXPROCS to the quota, or RDMANET_POLL_TIME=off: polling uses the quota up, and the whole process stops until the next period."
	case quota < 2 && m.MaxProcs > 1:
		f.Verdict = Warn
		f.Advice = "Set RDMANET_POLL_TIME=off, or GOMAXPROCS=1: polling takes what the quota leaves."
	case m.MaxProcs == 1:
		f.Found += ": no call polls, so that each wait is a sleep"
	}
	return f
}

// quota returns how many processors the control groups allow, infinity if there is no limit.
func (m *Machine) quota() (cpus float64, ok bool) {
	text, found := m.text("proc/self/cgroup")
	if !found {
		return math.Inf(1), false
	}
	cpus = math.Inf(1)
	for line := range strings.Lines(text) { // "0::/a/b" (version 2), "4:cpu,cpuacct:/a/b"
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) != 3 {
			continue
		}
		read, root := m.quotaV2, "sys/fs/cgroup"
		if fields[1] != "" {
			if !strings.Contains(","+fields[1]+",", ",cpu,") {
				continue
			}
			read, root = m.quotaV1, "sys/fs/cgroup/"+fields[1]
		}
		// Each level may have a limit. A container sees its own level as the root.
		for dir := path.Clean("/" + fields[2]); ; dir = path.Dir(dir) {
			cpus = math.Min(cpus, read(path.Join(root, dir)))
			if dir == "/" {
				break
			}
		}
	}
	return cpus, true
}

// quotaV2 reads quota and period in microseconds, as "200000 100000" or "max 100000".
func (m *Machine) quotaV2(dir string) float64 {
	text, _ := m.text(path.Join(dir, "cpu.max"))
	quota, period, _ := strings.Cut(text, " ")
	return ratio(quota, period)
}

func (m *Machine) quotaV1(dir string) float64 {
	quota, _ := m.text(path.Join(dir, "cpu.cfs_quota_us"))
	period, _ := m.text(path.Join(dir, "cpu.cfs_period_us"))
	return ratio(quota, period)
}

// ratio returns quota divided by period. It is infinite if there is no limit: "max", "-1" or no file.
func ratio(quota, period string) float64 {
	q, err1 := strconv.ParseFloat(quota, 64)
	p, err2 := strconv.ParseFloat(period, 64)
	if err1 != nil || err2 != nil || q <= 0 || p <= 0 {
		return math.Inf(1)
	}
	return q / p
}

// filesPerPeer is roughly how many open files a peer process takes: the control connection, and
// over shared memory four FIFOs, two locked files, and a socket or two of the provider.
const filesPerPeer = 10

func openFiles(m *Machine) Finding {
	f := Finding{Check: "open files"}
	n, unlimited, ok := m.limit("Max open files")
	switch {
	case !ok:
		f.Verdict, f.Found = Unknown, "/proc/self/limits does not tell"
		return f
	case unlimited:
		f.Found = "unlimited"
		return f
	}
	f.Found = fmt.Sprintf("limited to %d, enough for some %d peer processes", n, n/filesPerPeer)
	const advice = "Raise it with ulimit -n, LimitNOFILE in a systemd unit, nofile in /etc/security/limits.conf, or docker --ulimit nofile=65536."
	switch {
	case n < 128:
		f.Verdict, f.Advice = Fail, advice
	case n < 1024:
		f.Verdict, f.Advice = Warn, advice
	}
	return f
}
