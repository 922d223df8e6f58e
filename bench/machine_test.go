package main

import (
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestMachine(t *testing.T) {
	text := machine()
	for _, want := range []string{runtime.GOOS, runtime.GOARCH, runtime.Version(), "libfabric"} {
		assert.Contains(t, text, want)
	}
	assert.NotContains(t, text, "\n")
}

func TestCPUModel(t *testing.T) {
	arch := runtime.GOARCH
	assert.Equal(t, "Fast 9000 @ 1: 2 GHz ("+arch+")", cpuModel("processor\t: 0\nmodel\t\t: 7\nmodel name\t: Fast 9000 @ 1: 2 GHz\n\nprocessor\t: 1\nmodel name\t: Other\n"))
	assert.Equal(t, arch, cpuModel("processor\t: 0\nBogoMIPS\t: 50.00\n"))
	assert.Equal(t, arch, cpuModel(""))
}

func TestCommit(t *testing.T) {
	built := func(settings ...debug.BuildSetting) *debug.BuildInfo { return &debug.BuildInfo{Settings: settings} }
	revision := debug.BuildSetting{Key: "vcs.revision", Value: "0123456789abcdef"}
	assert.Equal(t, "unknown", commit(nil, false))
	assert.Equal(t, "unknown", commit(built(), true))
	assert.Equal(t, "0123456789ab", commit(built(revision, debug.BuildSetting{Key: "vcs.modified", Value: "false"}), true))
	assert.Equal(t, "0123456789ab-dirty", commit(built(revision, debug.BuildSetting{Key: "vcs.modified", Value: "true"}), true))
}
