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

// machine is what settings of libfabric depend on, besides its version.
type machine struct {
	cq, srq     int  // of RDMA devices, see ofi.DeviceLimits
	hfi1, cxi   bool // there is such a device
	kdreg2      bool // the kernel has that module
	userfaultfd bool // the kernel lets this process watch its own mappings: userfaultfd(2)
}

// thisMachine looks only for what devices that are there ask for.
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

// userfaultfd asks as libfabric's monitor does (ofi_uffd_start): without rights the call
// may be forbidden, vm.unprivileged_userfaultfd.
func userfaultfd() bool {
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|unix.O_NONBLOCK, 0, 0)
	if errno != 0 {
		return false
	}
	_ = unix.Close(int(fd))
	return true
}

// prepare makes the settings of libfabric's that the table asks for. They count if
// libfabric has not been called before. What the user has set stays.
var prepare = sync.OnceFunc(func() { settings(thisMachine(), ofi.LibraryVersion, ofi.Setenv) })

// settings has setenv told of all settings for a machine. Of one variable the first counts.
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

// getInfo is ofi.GetInfo with the environment prepared. Where there is no libfabric it
// fails with fabric.ErrUnsupported.
func getInfo(h ofi.Hints) (*ofi.InfoList, error) {
	if err := (ofiFabric{}).Supported(); err != nil {
		return nil, err
	}
	return ofi.GetInfo(h)
}

// Supported is fabric.Supporter's.
func (ofiFabric) Supported() error {
	prepare()
	if err := ofi.Load(); err != nil {
		return fmt.Errorf("%w: %w", fabric.ErrUnsupported, err)
	}
	return nil
}

// unmonitored tells that a provider is of no use with the monitor of registered memory
// that is set.
func unmonitored(provider string) bool {
	if !has(provider, needsMonitor) {
		return false
	}
	monitor, set := ofi.Getenv(monitorVar)
	return set && monitor == monitorDisabled
}
