//go:build linux && cgo

package ofifabric

import (
	"fmt"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/seed202c38ff/fabricnet/cgo/ofi"
	"github.com/seed202c38ff/fabricnet/internal/fabric"
)

// machine describes what the settings for libfabric depend on, besides its version.
type machine struct {
	cq, srq     int  // queue limits of RDMA devices, see ofi.DeviceLimits
	hfi1, cxi   bool // whether there is such a device
	kdreg2      bool // whether the kernel has that module
	userfaultfd bool // whether the kernel lets this process watch its own mappings: userfaultfd(2)
}

// thisMachine looks only for what the devices that are present need.
func thisMachine() machine {
	m := machine{cq: -1, srq: -1}
	if found("/sys/class/infiniband/*") {
		m.cq, m.srq = ofi.DeviceLimits()
		if shared, set := ofi.Getenv("FI_OFI_RXM_USE_SRX"); set && shared != "1" {
			m.srq = 0
		}
	}
	m.hfi1, m.cxi = found("/dev/hfi1_*"), found("/sys/class/cxi/*")
	if m.hfi1 || m.cxi {
		m.kdreg2, m.userfaultfd = found("/dev/kdreg2"), userfaultfd()
	}
	return m
}

func found(pattern string) bool {
	list, _ := filepath.Glob(pattern)
	return len(list) > 0
}

// userfaultfd makes the same call as libfabric's monitor (ofi_uffd_start). Without privileges it
// may be forbidden: see the sysctl vm.unprivileged_userfaultfd.
func userfaultfd() bool {
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|unix.O_NONBLOCK, 0, 0)
	if errno != 0 {
		return false
	}
	_ = unix.Close(int(fd))
	return true
}

// prepare sets the variables for libfabric that the table of quirks asks for. They take effect only
// if libfabric has not been called before. Variables that the user has set stay as they are.
var prepare = sync.OnceFunc(func() { settings(thisMachine(), ofi.LibraryVersion, ofi.Setenv) })

// settings calls setenv with all settings for a machine. If a variable is set more than once, the
// first value counts.
func settings(m machine, version func() string, setenv func(name, value string)) {
	for i := range quirks {
		q := &quirks[i]
		if q.does != set || (q.from != "" || q.before != "") && !q.during(version()) {
			continue
		}
		if value := q.value(m); value != "" {
			setenv(q.arg, value)
		}
	}
}

// getInfo is ofi.GetInfo with the environment prepared. If there is no libfabric, it fails with
// fabric.ErrUnsupported.
func getInfo(h ofi.Hints) (*ofi.InfoList, error) {
	if err := (ofiFabric{}).Supported(); err != nil {
		return nil, err
	}
	return ofi.GetInfo(h)
}

// Supported implements fabric.Supporter.
func (ofiFabric) Supported() error {
	prepare()
	if err := ofi.Load(); err != nil {
		return fmt.Errorf("%w: %w", fabric.ErrUnsupported, err)
	}
	return nil
}

// unmonitored reports whether a provider is of no use because the monitor of registered memory is
// disabled.
func unmonitored(provider string) bool {
	if !has(provider, needsMonitor) {
		return false
	}
	monitor, set := ofi.Getenv(monitorVar)
	return set && monitor == monitorDisabled
}
