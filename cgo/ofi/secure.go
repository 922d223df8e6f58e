//go:build linux && cgo

package ofi

// #include <sys/auxv.h>
import "C"

import (
	"os"
	"slices"
	"strings"
)

// distrusted lists how variables begin that choose code to load or files to write: all of ours, of
// libfabric's and of those libraries for which it has a provider, and of rdma-core's, libnl's and of
// the GPU runtimes', which libfabric loads, those that name files.
var distrusted = []string{
	"RDMANET_", "FI_", "PSM_", "PSM2_", "PSM3_", "IPATH_", "HFI_", "CXIP_", "UCX_",
	"IBV_DRIVERS=", "RDMAV_DRIVERS=", "SYSFS_PATH=", "VERBS_LOG_FILE=", "MLX5_DEBUG_FILE=", "QELR_DEBUG_FILE=",
	"NLSYSCONFDIR=", "PROC_ROOT=", "PROC_NET_PSCHED=",
	"CUDA_INJECTION64_PATH=", "HSA_TOOLS_LIB=", "ROCP_TOOL_LIB", "ROCPROFILER_REGISTER_LIBRARY=", "ZE_ENABLE_ALT_DRIVERS=",
}

func distrusts(entry string) bool {
	return slices.ContainsFunc(distrusted, func(start string) bool { return strings.HasPrefix(entry, start) })
}

// A program with more rights than its user (AT_SECURE of getauxval(3)) must not let that user choose
// its code. libfabric does not look at that, and rdma-core only at user ids, not at capabilities. So
// the variables are removed from Go's environment and C's, before main can set any of its own.
func init() {
	if C.getauxval(C.AT_SECURE) == 0 {
		return
	}
	for _, entry := range os.Environ() {
		if distrusts(entry) {
			name, _, _ := strings.Cut(entry, "=")
			_ = os.Unsetenv(name) // calls unsetenv(3), too, and fails only without a name
		}
	}
}
