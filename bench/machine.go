package main

import (
	"fmt"
	"os"
	"runtime"
	"strings"

	"github.com/seed202c38ff/fabricnet/internal/doctor"
)

// machine describes what the figures were measured on.
func machine() string {
	// Both files exist on Linux only; elsewhere less is said.
	cpus, _ := os.ReadFile("/proc/cpuinfo")
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	return strings.Join([]string{
		cpuModel(string(cpus)),
		fmt.Sprintf("%d CPUs", runtime.NumCPU()),
		strings.TrimSpace(runtime.GOOS + " " + string(kernel)),
		runtime.Version(),
		doctor.Library(),
	}, ", ")
}

// cpuModel finds the first processor's name in the text of /proc/cpuinfo,
// which not every architecture puts there.
func cpuModel(cpuinfo string) string {
	for line := range strings.Lines(cpuinfo) {
		name, model, _ := strings.Cut(line, ":")
		if model = strings.TrimSpace(model); strings.TrimSpace(name) == "model name" && model != "" {
			return model + " (" + runtime.GOARCH + ")"
		}
	}
	return runtime.GOARCH
}
