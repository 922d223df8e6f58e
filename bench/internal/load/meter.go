package load

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"github.com/seed202c38ff/fabricnet/bench/internal/workload"
)

// A meter reads a process's usage. Its methods may be called concurrently.
type meter struct {
	transport carrier
	once      sync.Once
	conns     atomic.Int64 // conns being served, if they are counted
	mu        sync.Mutex
	first     *memory // with one conn, or at the mark
}

// memory is what a process has at some time, in bytes: what the fabric may access, MemoryStats'
// figures, and all that is resident.
type memory struct{ registered, used, mapped, resident int64 }

func (m *meter) memory() memory {
	now := m.transport.memory()
	now.resident = residentMemory()
	return now
}

// firstConn notes what there is with one conn. Only the first call counts.
func (m *meter) firstConn() { m.once.Do(m.mark) }

// mark notes what there is.
func (m *meter) mark() {
	now := m.memory()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.first = &now
}

// counting counts the conns that handle is called with.
func (m *meter) counting(handle func(net.Conn) error) func(net.Conn) error {
	return func(c net.Conn) error {
		m.conns.Add(1)
		defer m.conns.Add(-1)
		return handle(c)
	}
}

func (m *meter) read() (workload.Usage, error) {
	cpu, err := cpuTime()
	if err != nil {
		return workload.Usage{}, err
	}
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	u := workload.Usage{CPU: cpu, Mallocs: mem.Mallocs, Conns: int(m.conns.Load())}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.first != nil {
		now := m.memory()
		u.Registered = now.registered - m.first.registered
		u.Resident = now.resident - m.first.resident
		u.Used, u.Mapped = now.used-m.first.used, now.mapped-m.first.mapped
	}
	return u, nil
}

// answer answers a question. How much garbage there is depends on what was done before, so garbage
// is not counted if the question is about memory.
func (m *meter) answer(question string) (workload.Usage, error) {
	if question != askUsage {
		debug.FreeOSMemory()
	}
	if question == askMark {
		m.mark()
	}
	return m.read()
}

func (m *meter) report(question string, out *json.Encoder) error {
	u, err := m.answer(question)
	if err != nil {
		return err
	}
	return out.Encode(reply{Usage: u})
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
