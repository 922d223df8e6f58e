package main

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"sync"
	"time"
)

// usage is what a process has used so far.
type usage struct {
	CPU     time.Duration `json:"cpu_ns"`
	Mallocs uint64        `json:"mallocs"` // allocations of Go memory
	// Bytes that have come with the conns after the first one, if the mode is
	// idle: memory that the fabric may access, and all that is resident.
	Registered int64 `json:"registered,omitempty"`
	Resident   int64 `json:"resident,omitempty"`
}

// A meter reads a process's usage. Its methods may be called concurrently.
type meter struct {
	transport carrier
	once      sync.Once
	mu        sync.Mutex
	first     *memory // with one conn
}

// memory is what a process has at a time, in bytes.
type memory struct{ registered, resident int64 }

func (m *meter) memory() memory {
	return memory{m.transport.registered(), residentMemory()}
}

// firstConn notes what there is with one conn, when it is called first.
func (m *meter) firstConn() {
	m.once.Do(func() {
		now := m.memory()
		m.mu.Lock()
		defer m.mu.Unlock()
		m.first = &now
	})
}

func (m *meter) read() (usage, error) {
	cpu, err := cpuTime()
	if err != nil {
		return usage{}, err
	}
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	u := usage{CPU: cpu, Mallocs: mem.Mallocs}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.first != nil {
		now := m.memory()
		u.Registered = now.registered - m.first.registered
		u.Resident = now.resident - m.first.resident
	}
	return u, nil
}

func (m *meter) report(out *json.Encoder) error {
	u, err := m.read()
	if err != nil {
		return err
	}
	return out.Encode(reply{Usage: u})
}

// since returns what was used after earlier. The memory is what there is now.
func (u usage) since(earlier usage) usage {
	u.CPU -= earlier.CPU
	u.Mallocs -= earlier.Mallocs
	return u
}

// residentMemory returns the bytes that this process has in memory, and 0 where
// the system has no /proc.
func residentMemory() int64 {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	var size, resident int64
	if _, err := fmt.Sscan(string(text), &size, &resident); err != nil {
		return 0
	}
	return resident * int64(os.Getpagesize())
}

// jain returns Jain's fairness index of the shares: 1 if all are equal, 1/n if
// one of n has everything. Nothing at all is shared fairly.
func jain(shares []float64) float64 {
	var sum, squares float64
	for _, x := range shares {
		sum += x
		squares += x * x
	}
	if squares == 0 {
		return 1
	}
	return sum * sum / (float64(len(shares)) * squares)
}
