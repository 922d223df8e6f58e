package main

import (
	"bytes"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestBusyPercent(t *testing.T) {
	before := "cpu  100 10 50 1000 40 0 0 0 7 7\ncpu0 1 2 3 4\n"
	assert.InDelta(t, 75, busyPercent(before, "cpu  150 20 60 1020 45 1 2 2 57 57\ncpu0 1 2 3 4\n"), 0.01)
	assert.InDelta(t, 0, busyPercent(before, "cpu  100 10 50 1100 40 0 0 0 7 7\n"), 0)
	assert.InDelta(t, 0, busyPercent(before, before), 0)
	assert.InDelta(t, 0, busyPercent("", ""), 0)
	assert.InDelta(t, 0, busyPercent(before, "cpu  x 10 50 1100 40 0 0 0 7 7\n"), 0)
}

// TestOthersCPU: what this process takes itself counts here, since it does not sleep.
func TestOthersCPU(t *testing.T) {
	var stop atomic.Bool
	defer stop.Store(true)
	go func() {
		for !stop.Load() {
		}
	}()
	before, _ := os.ReadFile("/proc/stat")
	percent := othersCPU(t.Context(), 500*time.Millisecond)
	assert.LessOrEqual(t, percent, 100.0)
	if after, _ := os.ReadFile("/proc/stat"); bytes.Equal(before, after) {
		t.Skip("NOT TESTED: this host does not count its CPUs' time in /proc/stat")
	}
	assert.Positive(t, percent)
}
