package doctor

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/seed202c38ff/fabricnet/rdmanet"
)

func goVersion(m *Machine) Finding {
	f := Finding{Check: "Go", Found: m.Go}
	if !strings.HasPrefix(m.Go, "go1.") {
		f.Verdict, f.Found = Unknown, m.Go+" is no release"
	}
	return f
}

// newest is the newest version of libfabric that fabricnet has been run with: see
// docs/providers.md.
const newest = "2.6"

func libfabric(m *Machine) Finding {
	f := Finding{Check: "libfabric", Found: fmt.Sprintf("%s in %s, compiled with %s", m.Library, m.File, m.Compiled)}
	switch {
	case m.Compiled == "":
		f.Verdict, f.Found = Fail, "this program was built without its headers, or without cgo"
		f.Advice = "Build on Linux with CGO_ENABLED=1, glibc, a C compiler and libfabric's headers (libfabric-dev); where they are there by now, with go build -a, or go run -a."
	case m.Library == "":
		f.Verdict, f.Found = Fail, "none"
		f.Advice = "Install it (libfabric1), or name its file in RDMANET_LIBFABRIC."
		if m.sets("RDMANET_LIBFABRIC") {
			f.Advice = "Correct or unset RDMANET_LIBFABRIC: no other file is tried."
		}
	case older(newest, m.Library):
		f.Verdict = Warn
		f.Advice = "Run the tests with it: the newest version that fabricnet was run with is " + newest + "."
	}
	return f
}

// older reports whether a is an older version than b, by their first two numbers. It returns false
// if one of them does not begin with two numbers.
func older(a, b string) bool {
	var a1, a2, b1, b2 int
	if n, _ := fmt.Sscanf(a, "%d.%d", &a1, &a2); n < 2 {
		return false
	}
	if n, _ := fmt.Sscanf(b, "%d.%d", &b1, &b2); n < 2 {
		return false
	}
	return a1 < b1 || a1 == b1 && a2 < b2
}

// monitors are the settings of FI_MR_CACHE_MONITOR that do no harm: these monitors of registered
// memory work in the kernel, or not at all.
var monitors = []string{"disabled", "kdreg2", "userfaultfd", "uffd"}

// environment lists the variables that change what libfabric and rdmanet do.
func environment(m *Machine) Finding {
	f := Finding{Check: "environment", Found: "no variable of rdmanet or libfabric is set"}
	var set []string
	for _, v := range m.Environ {
		if strings.HasPrefix(v, "RDMANET_") || strings.HasPrefix(v, "FI_") {
			set = append(set, v)
		}
	}
	slices.Sort(set)
	if len(set) > 0 {
		f.Found = strings.Join(set, " ")
	}
	for _, v := range set {
		name, value, _ := strings.Cut(v, "=")
		switch {
		case name == "FI_PROVIDER" && value != "":
			f.Verdict, f.Advice = Warn, "Unset FI_PROVIDER, which hides providers from all programs, and use RDMANET_PROVIDERS."
		case strings.HasPrefix(name, "RDMANET_") && !strings.HasPrefix(name, "RDMANET_TEST_") && !slices.Contains(variables, name):
			f.Verdict, f.Advice = Warn, "Unset "+name+", which nothing reads, or name what was meant: "+strings.Join(variables, ", ")+"."
		case name == "FI_MR_CACHE_MONITOR" && !slices.Contains(monitors, value):
			f.Verdict, f.Advice = Warn, "Unset FI_MR_CACHE_MONITOR: libfabric's cache of registrations does not see what Go's runtime unmaps."
		case name == "FI_OFI_RXM_USE_SRX" && value == "0":
			f.Verdict, f.Advice = Warn, "Unset FI_OFI_RXM_USE_SRX: without a shared receive queue ofi_rxm may crash when a connection is closed."
		}
	}
	return f
}

// variables are those that rdmanet reads.
var variables = []string{"RDMANET_PROVIDERS", "RDMANET_ENDPOINT_PREFIXES", "RDMANET_MEMORY_LIMIT", "RDMANET_POLL_TIME", "RDMANET_LIBFABRIC"}

// hardware are the providers of RDMA devices.
var hardware = []string{"cxi", "efa", "psm3", "opx", "verbs;ofi_rxm"}

// providers says which providers rdmanet would choose.
func providers(m *Machine) Finding {
	f := Finding{Check: "providers"}
	if m.ProvidersErr != nil {
		f.Verdict, f.Found = Fail, m.ProvidersErr.Error()
		switch {
		case errors.Is(m.ProvidersErr, rdmanet.ErrConfig):
			f.Advice = "Correct the environment variable."
		case errors.Is(m.ProvidersErr, rdmanet.ErrUnsupported):
			f.Advice = "See what is said of libfabric above."
		default:
			f.Advice = "Look at what fi_info -v says."
		}
		return f
	}
	used := m.used()
	f.Found = strings.Join(used, ", then ")
	switch {
	case len(used) == 0:
		f.Verdict, f.Found = Fail, "none that rdmanet would use"
		f.Advice = "Look at fabricnet info, which says why not. Within this host: " + m.reason("shm") + ". Between hosts: " + m.reason("tcp", "net", "tcp;ofi_rxm") + "."
	case !m.hasHardware() && len(m.names(classInfiniband)) > 0 && !m.chosen():
		f.Verdict = Warn
		f.Advice = "There is an RDMA device, but it is not used: " + m.reason(hardware...) + "."
	case !slices.Contains(used, "shm") && !m.chosen():
		f.Verdict = Warn
		f.Advice = "Conns within this host do not use shared memory: " + m.reason("shm") + "."
	}
	return f
}

// used lists the providers that rdmanet would choose, best first.
func (m *Machine) used() (names []string) {
	for _, p := range m.Providers {
		if p.Rank > 0 {
			names = append(names, p.Provider)
		}
	}
	return names
}

// hasHardware reports whether one of these is the provider of an RDMA device.
func (m *Machine) hasHardware() bool {
	return slices.ContainsFunc(m.used(), func(name string) bool { return slices.Contains(hardware, name) })
}

// chosen reports whether somebody has chosen the providers, so that some may be left out on purpose.
func (m *Machine) chosen() bool { return m.sets("RDMANET_PROVIDERS") }

// sets reports whether the environment has a value for a variable.
func (m *Machine) sets(name string) bool {
	return slices.ContainsFunc(m.Environ, func(v string) bool {
		value, set := strings.CutPrefix(v, name+"=")
		return set && value != ""
	})
}

// reason returns why these providers are not used: what rdmanet says of the first of them that is there
// in part, with a domain, or else of the last one about which it says anything. For a single provider
// it is the first thing that rdmanet says.
func (m *Machine) reason(names ...string) string {
	why := "libfabric does not offer it"
	for _, p := range m.Providers {
		if slices.Contains(names, p.Provider) && p.Reason != "" {
			why = p.Reason
			if p.Domain != "" || len(names) == 1 {
				return why
			}
		}
	}
	return why
}
