//go:build linux && cgo

package ofi

// #include <sys/auxv.h>
import "C"

import (
	"os"
	"slices"
	"strings"
)

// distrusted is how those variables begin that choose code to load, files to write or devices to
// use: all of ours and libfabric's, those of PSM, which its providers carry with them, and of the
// libraries that it loads those that name files.
var distrusted = []string{
	"RDMANET_", "FI_", "PSM2_", "PSM3_", "HFI_", "CXIP_", "UCX_",
	"IBV_DRIVERS=", "RDMAV_DRIVERS=", "SYSFS_PATH=", "VERBS_LOG_FILE=", "MLX5_DEBUG_FILE=",
	"CUDA_INJECTION64_PATH=", "HSA_TOOLS_LIB=", "ROCP_TOOL_LIB", "ROCPROFILER_REGISTER_LIBRARY=", "ZE_ENABLE_ALT_DRIVERS=",
}

func distrusts(entry string) bool {
	return slices.ContainsFunc(distrusted, func(start string) bool { return strings.HasPrefix(entry, start) })
}

// A program with more rights than its user (AT_SECURE of getauxval(3)) must not let that user
// choose its code, and libfabric would. So such variables are removed, in Go's environment and in C's,
// before main can set any of its own.
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
