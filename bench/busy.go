package main

import (
	"context"
	"os"
	"strconv"
	"strings"
	"time"
)

// othersCPU watches for d how much of the CPUs' time other programs take, in percent. It is 0 where
// there is no /proc/stat.
func othersCPU(ctx context.Context, d time.Duration) float64 {
	before, _ := os.ReadFile("/proc/stat")
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
	after, _ := os.ReadFile("/proc/stat")
	return busyPercent(string(before), string(after))
}

// busyPercent returns how busy the CPUs were between two texts of /proc/stat.
func busyPercent(before, after string) float64 {
	busy0, all0 := cpuTicks(before)
	busy1, all1 := cpuTicks(after)
	if all1 <= all0 {
		return 0
	}
	return 100 * max(0, min(1, float64(busy1-busy0)/float64(all1-all0))) // idle and iowait may fall
}

// cpuTicks sums the first line of /proc/stat, proc_stat(5): user, nice, system, idle, iowait, irq,
// softirq, steal. The rest is part of user and nice.
func cpuTicks(text string) (busy, all int) {
	line, _, _ := strings.Cut(text, "\n")
	fields := strings.Fields(strings.TrimPrefix(line, "cpu "))
	for i, field := range fields[:min(len(fields), 8)] {
		n, err := strconv.Atoi(field)
		if err != nil {
			return 0, 0
		}
		all += n
		if i != 3 && i != 4 {
			busy += n
		}
	}
	return busy, all
}
