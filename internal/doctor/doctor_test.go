package doctor

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/rdmanet"
)

const (
	limits = `Limit                     Soft Limit           Hard Limit           Units
Max cpu time              unlimited            unlimited            seconds
Max locked memory         8388608              8388608              bytes
Max open files            20000                20000                files
`
	mounts = `24 1 259:1 / / rw,relatime shared:1 - ext4 /dev/root rw
31 24 0:26 / /dev/shm rw,nosuid,nodev shared:4 - tmpfs tmpfs rw,inode64
`
	status = "Name:\ttest\nCapEff:\t0000000000000000\nSeccomp:\t0\n"
	gid4   = "0000:0000:0000:0000:0000:ffff:0a09:0001"
	link6  = "fe80:0000:0000:0000:5054:00ff:fe12:3456"
	none6  = "0000:0000:0000:0000:0000:0000:0000:0000"
)

// files is a tree of files by their paths. A value that begins with "->" is a symbolic link.
type files map[string]string

// host has the files of a host without RDMA devices on which all is well.
var host = files{
	"proc/self/limits": limits, "proc/self/mountinfo": mounts, "proc/self/status": status, "proc/self/cgroup": "0::/user.slice\n",
	"proc/self/ns/pid": "->pid:[4026531836]", "proc/self/ns/user": "->user:[4026531837]", "proc/meminfo": "HugePages_Free:        3\n",
	"sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
	"sys/fs/cgroup/user.slice/cpu.max":           "max 100000\n", "dev/shm/x": "",
}

// roce has the files that a RoCE device adds if all is well with it.
var roce = files{
	"sys/class/infiniband/rxe0/ports/1/state": "4: ACTIVE\n", "sys/class/infiniband/rxe0/ports/1/link_layer": "Ethernet\n",
	"sys/class/infiniband/rxe0/ports/1/rate": "100 Gb/sec (4X EDR)\n", "sys/class/infiniband/rxe0/ports/1/gids/0": link6 + "\n",
	"sys/class/infiniband/rxe0/ports/1/gids/1": gid4 + "\n", "sys/class/infiniband/rxe0/ports/1/gids/2": none6 + "\n",
	"sys/class/infiniband/rxe0/ports/1/gid_attrs/ndevs/0": "eth0\n", "sys/class/infiniband/rxe0/ports/1/gid_attrs/ndevs/1": "eth0\n",
	"sys/class/infiniband_verbs/uverbs0/ibdev": "rxe0\n", "sys/class/infiniband_verbs/abi_version": "6\n",
	"dev/infiniband/uverbs0": "", "dev/infiniband/rdma_cm": "",
}

const absent = "absent" // as a value: the file does not exist

// machine returns host with some changes.
func machine(changes ...files) *Machine {
	all := maps.Clone(host)
	for _, c := range changes {
		maps.Copy(all, c)
	}
	root := fstest.MapFS{}
	for name, text := range all {
		target, link := strings.CutPrefix(text, "->")
		switch {
		case text == absent:
		case link:
			root[name] = &fstest.MapFile{Data: []byte(target), Mode: fs.ModeSymlink}
		default:
			root[name] = &fstest.MapFile{Data: []byte(text)}
		}
	}
	return &Machine{
		Root: root, CPUs: 4, MaxProcs: 4, Go: "go1.26.0", Compiled: "1.17", Library: "1.17.0", File: "/lib/libfabric.so.1",
		Space: func(string) (uint64, error) { return 1 << 30, nil }, Usable: func(string) error { return nil }, Safe: func(string) error { return nil },
		Providers: []rdmanet.ProviderInfo{{Provider: "shm", Rank: 1}, {Provider: "net", Rank: 2}},
	}
}

// with makes one more change to a machine.
func with(m *Machine, change func(*Machine)) *Machine {
	change(m)
	return m
}

func limited(name, value string) files {
	var lines []string
	for line := range strings.Lines(limits) {
		if rest, found := strings.CutPrefix(line, name); found {
			line = name + "  " + value + "  " + strings.Join(strings.Fields(rest)[1:], "  ") + "\n"
		}
		lines = append(lines, line)
	}
	return files{"proc/self/limits": strings.Join(lines, "")}
}

func capabilities(set string) files {
	return files{"proc/self/status": strings.Replace(status, "0000000000000000", set, 1)}
}

func port(name, value string) files {
	return files{"sys/class/infiniband/rxe0/ports/1/" + name: value}
}

func TestChecks(t *testing.T) {
	denied := &fs.PathError{Op: "access", Path: "/dev/shm", Err: fs.ErrPermission}
	firstPort := func(m *Machine) Finding { return rdmaDevices(m)[0] }
	deviceFile := func(m *Machine) Finding { list := rdmaDevices(m); return list[len(list)-1] }
	provided := func(list ...rdmanet.ProviderInfo) func(*Machine) { return func(m *Machine) { m.Providers = list } }
	failed := func(err error) func(*Machine) { return func(m *Machine) { m.ProvidersErr = err } }
	environ := func(list ...string) func(*Machine) { return func(m *Machine) { m.Environ = list } }
	room := func(n uint64, err error) func(*Machine) {
		return func(m *Machine) { m.Space = func(string) (uint64, error) { return n, err } }
	}
	versions := func(compiled, library string) func(*Machine) {
		return func(m *Machine) { m.Compiled, m.Library = compiled, library }
	}
	shm, tcp := rdmanet.ProviderInfo{Provider: "shm", Rank: 1}, rdmanet.ProviderInfo{Provider: "tcp;ofi_rxm", Rank: 2}

	for name, tt := range map[string]struct {
		check   func(*Machine) Finding
		machine *Machine
		verdict Verdict
		found   string
		advice  string
	}{
		"release":    {goVersion, machine(), OK, "go1.26.0", ""},
		"no release": {goVersion, with(machine(), func(m *Machine) { m.Go = "devel go1.27-abc" }), Unknown, "is no release", ""},

		"libfabric":           {libfabric, machine(), OK, "1.17.0 in /lib/libfabric.so.1, compiled with 1.17", ""},
		"newest libfabric":    {libfabric, with(machine(), versions("1.17", "2.6.1")), OK, "2.6.1", ""},
		"newer libfabric":     {libfabric, with(machine(), versions("1.17", "2.7.0")), Warn, "2.7.0", "is 2.6"},
		"older than compiled": {libfabric, with(machine(), versions("2.1", "1.22.0")), OK, "compiled with 2.1", ""},
		"libfabric is absent": {libfabric, with(machine(), versions("2.1", "")), Fail, "none", "libfabric1"},
		"another libfabric":   {libfabric, with(with(machine(), versions("2.1", "")), environ("RDMANET_LIBFABRIC=/x")), Fail, "none", "unset RDMANET_LIBFABRIC"},
		"empty variable":      {libfabric, with(with(machine(), versions("2.1", "")), environ("RDMANET_LIBFABRIC=")), Fail, "none", "libfabric1"},
		"no libfabric":        {libfabric, with(machine(), versions("", "")), Fail, "built without", "go build -a"},

		"no variables":     {environment, machine(), OK, "no variable", ""},
		"other variables":  {environment, with(machine(), environ("PATH=/bin", "XFI_A=1")), OK, "no variable", ""},
		"a misspelt one":   {environment, with(machine(), environ("RDMANET_PROVIDER=shm")), Warn, "RDMANET_PROVIDER=shm", "RDMANET_PROVIDERS"},
		"variables":        {environment, with(machine(), environ("RDMANET_PROVIDERS=shm", "FI_LOG_LEVEL=warn")), OK, "FI_LOG_LEVEL=warn RDMANET_PROVIDERS=shm", ""},
		"hidden providers": {environment, with(machine(), environ("FI_PROVIDER=tcp")), Warn, "FI_PROVIDER=tcp", "Unset FI_PROVIDER"},
		"stale cache":      {environment, with(machine(), environ("FI_MR_CACHE_MONITOR=memhooks")), Warn, "memhooks", "Unset"},
		"kernel's cache":   {environment, with(machine(), environ("FI_MR_CACHE_MONITOR=kdreg2")), OK, "kdreg2", ""},
		"no cache":         {environment, with(machine(), environ("FI_MR_CACHE_MONITOR=disabled")), OK, "disabled", ""},
		"own queues":       {environment, with(machine(), environ("FI_OFI_RXM_USE_SRX=0")), Warn, "SRX=0", "may crash"},

		"providers":          {providers, machine(), OK, "shm, then net", ""},
		"no providers":       {providers, with(machine(), provided(rdmanet.ProviderInfo{Provider: "net", Reason: "no room"})), Fail, "none", "no room"},
		"nothing known":      {providers, with(machine(), provided()), Fail, "none", "does not offer"},
		"bad environment":    {providers, with(machine(), failed(rdmanet.ErrConfig)), Fail, "invalid configuration", "environment variable"},
		"unsupported":        {providers, with(machine(), failed(rdmanet.ErrUnsupported)), Fail, "no libfabric", "above"},
		"other failure":      {providers, with(machine(), failed(errors.New("fi_getinfo"))), Fail, "fi_getinfo", "fi_info"},
		"no shm":             {providers, with(machine(), provided(rdmanet.ProviderInfo{Provider: "shm", Reason: "too small"}, tcp)), Warn, "tcp;ofi_rxm", "too small"},
		"shm is left out":    {providers, with(with(machine(), provided(tcp)), environ("RDMANET_PROVIDERS=tcp;ofi_rxm")), OK, "tcp;ofi_rxm", ""},
		"device is not used": {providers, with(machine(roce), provided(shm, tcp, rdmanet.ProviderInfo{Provider: "efa", Reason: "absent"}, rdmanet.ProviderInfo{Provider: "verbs;ofi_rxm", Domain: "rxe0", Reason: "no memory"})), Warn, "shm", "no memory"},
		"device is used":     {providers, with(machine(roce), provided(shm, rdmanet.ProviderInfo{Provider: "verbs;ofi_rxm", Rank: 2})), OK, "verbs;ofi_rxm", ""},

		"no device":        {firstPort, machine(), OK, "none", "modprobe rdma_rxe"},
		"another class":    {firstPort, with(machine(), provided(shm, rdmanet.ProviderInfo{Provider: "cxi", Rank: 2})), OK, "none in /sys/class/infiniband", ""},
		"only the module":  {firstPort, machine(files{"sys/module/rdma_rxe/refcnt": "0"}), OK, "none", "is loaded"},
		"port":             {firstPort, machine(roce), OK, "ACTIVE, Ethernet, 100 Gb/sec (4X EDR), 2 GIDs, of eth0", ""},
		"port down":        {firstPort, machine(roce, port("state", "1: DOWN\n")), Warn, "DOWN", "ip link set eth0 up"},
		"InfiniBand down":  {firstPort, machine(roce, port("state", "2: INIT\n"), port("link_layer", "InfiniBand\n")), Warn, "INIT", "subnet manager"},
		"InfiniBand":       {firstPort, machine(roce, port("link_layer", "InfiniBand\n"), port("gids/1", none6)), OK, "1 GIDs", ""},
		"no GID":           {firstPort, machine(roce, port("gids/0", none6), port("gids/1", none6)), Warn, "0 GIDs", "no GID"},
		"link address":     {firstPort, machine(roce, port("gids/1", none6)), Warn, "1 GIDs", "eth0 an IP address"},
		"port of no state": {firstPort, machine(roce, port("state", absent)), Unknown, "no state", ""},

		"device files":        {deviceFile, machine(roce), OK, "can be used", ""},
		"no uverbs":           {deviceFile, machine(roce, files{"dev/infiniband/uverbs0": absent}), Fail, "/dev/infiniband/uverbs0 is missing", "--device=/dev/infiniband"},
		"no rdma_cm":          {deviceFile, machine(roce, files{"dev/infiniband/rdma_cm": absent}), Warn, "/dev/infiniband/rdma_cm is missing", "rdma_ucm"},
		"no module":           {deviceFile, machine(roce, files{"sys/class/infiniband_verbs/uverbs0/ibdev": absent}), Fail, "rxe0", "ib_uverbs"},
		"others' device file": {deviceFile, with(machine(roce), func(m *Machine) { m.Usable = func(string) error { return fs.ErrPermission } }), Fail, "permission denied", "read and write"},

		"no device to lock for": {lockedMemory, machine(), OK, "8192 KiB", ""},
		"little to lock":        {lockedMemory, machine(roce), Fail, "limited to 8192 KiB, and RDMA devices need up to 384 MiB", "memlock=-1"},
		"just too little":       {lockedMemory, machine(roce, limited("Max locked memory", "402653183")), Fail, "383 MiB", "ulimit -l"},
		"enough to lock":        {lockedMemory, machine(roce, limited("Max locked memory", "402653184")), OK, "384 MiB", ""},
		"unlimited":             {lockedMemory, machine(roce, limited("Max locked memory", "unlimited")), OK, "unlimited", ""},
		"capable of locking":    {lockedMemory, machine(roce, capabilities("0000000000004000")), OK, "CAP_IPC_LOCK", ""},
		"capable in vain":       {lockedMemory, machine(roce, capabilities("0000000000004000"), files{"proc/self/ns/user": "->user:[4026532000]"}), Fail, "8192 KiB", "ulimit -l"},
		"no limits":             {lockedMemory, machine(files{"proc/self/limits": absent}), Unknown, "does not tell", ""},
		"odd limits":            {lockedMemory, machine(limited("Max locked memory", "much")), Unknown, "does not tell", ""},

		"shm directory":     {sharedMemory, machine(), OK, "1024 MiB free, 85 MiB are needed", ""},
		"just enough room":  {sharedMemory, with(machine(), room((4+1)*17<<20, nil)), OK, "85 MiB free", ""},
		"no room":           {sharedMemory, with(machine(), room((4+1)*17<<20-1, nil)), Warn, "84 MiB free", "--shm-size"},
		"no shm directory":  {sharedMemory, with(machine(), room(0, fs.ErrNotExist)), Warn, "does not exist", "mount -t tmpfs"},
		"read-only":         {sharedMemory, machine(files{"proc/self/mountinfo": strings.Replace(mounts, "/dev/shm rw", "/dev/shm ro", 1)}), Warn, "read-only", "remount,rw"},
		"on a disk":         {sharedMemory, machine(files{"proc/self/mountinfo": strings.Replace(mounts, "tmpfs tmpfs", "ext4 /dev/sda", 1)}), Warn, "ext4", "tmpfs"},
		"not mounted":       {sharedMemory, machine(files{"proc/self/mountinfo": ""}), Warn, "part of another file system", "tmpfs"},
		"not executable":    {sharedMemory, machine(files{"proc/self/mountinfo": strings.Replace(mounts, "rw,nosuid", "rw,noexec,nosuid", 1)}), OK, "free", ""},
		"mounted over":      {sharedMemory, machine(files{"proc/self/mountinfo": strings.Replace(mounts, "tmpfs tmpfs", "ext4 /dev/sda", 1) + mounts}), OK, "free", ""},
		"not for this user": {sharedMemory, with(machine(), func(m *Machine) { m.Usable = func(string) error { return denied } }), Warn, "permission denied", "chmod 1777"},
		"not sticky":        {sharedMemory, with(machine(), func(m *Machine) { m.Safe = func(string) error { return errors.New("mode 0777") } }), Warn, "mode 0777", "chmod 1777"},

		"namespaces":         {namespaces, machine(), OK, "of the host", ""},
		"own PID namespace":  {namespaces, machine(files{"proc/self/ns/pid": "->pid:[4026532000]"}), Warn, "PID namespace", "--pid=host"},
		"own user namespace": {namespaces, machine(files{"proc/self/ns/user": "->user:[4026532000]"}), OK, "user namespace", ""},
		"no namespaces":      {namespaces, machine(files{"proc/self/ns/pid": absent}), Unknown, "does not tell", ""},

		"no quota":          {processors, machine(), OK, "4, GOMAXPROCS 4", ""},
		"large quota":       {processors, machine(files{"sys/fs/cgroup/user.slice/cpu.max": "400000 100000"}), OK, "quota of 4", ""},
		"small quota":       {processors, machine(files{"sys/fs/cgroup/user.slice/cpu.max": "250000 100000"}), Warn, "quota of 2.5", "RDMANET_POLL_TIME=off"},
		"hardly any":        {processors, with(machine(files{"sys/fs/cgroup/user.slice/cpu.max": "50000 100000"}), func(m *Machine) { m.MaxProcs = 2 }), Warn, "quota of 0.5", "GOMAXPROCS=1"},
		"quota further up":  {processors, machine(files{"proc/self/cgroup": "0::/a/b/c\n", "sys/fs/cgroup/a/cpu.max": "200000 100000", "sys/fs/cgroup/a/b/c/cpu.max": "max 100000"}), Warn, "quota of 2", "GOMAXPROCS"},
		"quota as the root": {processors, machine(files{"proc/self/cgroup": "0::/docker/1\n", "sys/fs/cgroup/cpu.max": "100000 100000"}), Warn, "quota of 1", "GOMAXPROCS"},
		"version 1":         {processors, machine(files{"proc/self/cgroup": "9:cpuset:/\n4:cpu,cpuacct:/a\n", "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us": "100000", "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us": "100000"}), Warn, "quota of 1", "GOMAXPROCS"},
		"version 1 without": {processors, machine(files{"proc/self/cgroup": "4:cpu:/a\n", "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "-1", "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000"}), OK, "GOMAXPROCS 4", ""},
		"one processor":     {processors, with(machine(), func(m *Machine) { m.MaxProcs = 1 }), OK, "no call polls", ""},
		"no control groups": {processors, machine(files{"proc/self/cgroup": absent}), Unknown, "cannot be read", ""},

		"files":           {openFiles, machine(), OK, "limited to 20000, enough for some 2000 peer processes", ""},
		"enough files":    {openFiles, machine(limited("Max open files", "1024")), OK, "102 peer", ""},
		"some files":      {openFiles, machine(limited("Max open files", "1023")), Warn, "1023", "ulimit -n"},
		"few files":       {openFiles, machine(limited("Max open files", "127")), Fail, "127", "LimitNOFILE"},
		"unlimited files": {openFiles, machine(limited("Max open files", "unlimited")), OK, "unlimited", ""},
		"files untold":    {openFiles, machine(files{"proc/self/limits": absent}), Unknown, "does not tell", ""},

		"huge pages":        {hugePages, machine(), OK, "madvise; 3 reserved ones are free", ""},
		"no huge pages":     {hugePages, machine(files{"sys/kernel/mm/transparent_hugepage/enabled": "always madvise [never]\n"}), Warn, "off", "echo madvise"},
		"huge pages untold": {hugePages, machine(files{"sys/kernel/mm/transparent_hugepage/enabled": absent}), Unknown, "does not say", ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := tt.check(tt.machine)
			assert.NotEmpty(t, f.Check)
			assert.Equal(t, tt.verdict, f.Verdict, "%+v", f)
			assert.Contains(t, f.Found, tt.found)
			assert.Contains(t, f.Advice, tt.advice)
			if f.Verdict > Unknown {
				assert.NotEmpty(t, f.Advice)
			}
			if tt.verdict == OK && tt.advice == "" {
				assert.Empty(t, f.Advice)
			}
			if f.Advice != "" {
				assert.True(t, strings.HasSuffix(f.Advice, "."), "a sentence")
			}
		})
	}
}

func TestPorts(t *testing.T) {
	second := files{"sys/class/infiniband/rxe0/ports/2/state": "1: DOWN", "sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE"}
	var names []string
	for _, f := range rdmaDevices(machine(roce, second)) {
		names = append(names, f.Check)
	}
	assert.Equal(t, []string{"RDMA port mlx5_0/1", "RDMA port rxe0/1", "RDMA port rxe0/2", "RDMA device files"}, names)
}

// On a machine without any files every check says something, and none panics.
func TestEmptyMachine(t *testing.T) {
	m := machine()
	m.Root = fstest.MapFS{}
	r := Examine(m)
	assert.Len(t, r.Findings, 11)
	for _, f := range r.Findings {
		assert.NotEmpty(t, f.Check)
		assert.NotEmpty(t, f.Found)
	}
}

func TestReport(t *testing.T) {
	assert.Equal(t, OK, Examine(machine()).Verdict)
	assert.Equal(t, Warn, Examine(machine(files{"proc/self/ns/pid": "->pid:[4026532000]"})).Verdict)
	r := Examine(machine(roce, files{"proc/self/ns/pid": "->pid:[4026532000]"}))
	assert.Equal(t, Fail, r.Verdict, "of locked memory")

	var b bytes.Buffer
	require.NoError(t, r.WriteJSON(&b))
	assert.Contains(t, b.String(), `"verdict": "fail"`)
	var again Report
	require.NoError(t, json.Unmarshal(b.Bytes(), &again))
	assert.Equal(t, r, again)
	assert.Error(t, json.Unmarshal([]byte(`{"verdict":"bad"}`), &again))
	assert.Equal(t, "Verdict(9)", Verdict(9).String())

	b.Reset()
	require.NoError(t, Report{Findings: []Finding{{"a", OK, "good", ""}, {"long name", Fail, "bad", "Do it."}}}.WriteText(&b))
	assert.Equal(t, "ok    a          good\nfail  long name  bad\n                 -> Do it.\n", b.String())
	b.Reset()
	require.NoError(t, r.WriteText(&b))
	assert.NotContains(t, b.String(), "\x1b", "no colours")
}
