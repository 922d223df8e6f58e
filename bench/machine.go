package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
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

// builtFrom returns the commit of this program. `go run` does not record it, but it builds what is
// in the repository of the current directory.
func builtFrom() string {
	c := commit(debug.ReadBuildInfo())
	exe, err := os.Executable()
	if c != "unknown" || err != nil || !strings.Contains(exe, "go-build") { // where go run puts programs
		return c
	}
	out, err := exec.Command("git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*").Output()
	if err != nil {
		return c
	}
	return strings.TrimSpace(string(out))
}

// commit returns what version control says that a program was built from, as `go build` records it.
func commit(info *debug.BuildInfo, ok bool) string {
	if !ok {
		return "unknown"
	}
	settings := make(map[string]string)
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	revision := settings["vcs.revision"]
	if revision == "" {
		return "unknown"
	}
	revision = revision[:min(len(revision), 12)]
	if settings["vcs.modified"] == "true" {
		revision += "-dirty"
	}
	return revision
}
