package connlimit

import (
	"net"
	"sync"
	"time"
)

// Reset closes a conn in such a way that the peer gets an error, if the network can do that, and not
// the end of the stream.
func Reset(c net.Conn) {
	if c, ok := c.(interface{ SetLinger(sec int) error }); ok {
		_ = c.SetLinger(0)
	}
	_ = c.Close()
}

// Hush lets each kind of refusal be reported once in ten seconds: strangers must not fill the disk.
// It may be used concurrently.
type Hush[K comparable] struct {
	mu   sync.Mutex // guards what follows
	last map[K]time.Time
}

// Over reports whether a refusal of that kind may be reported, which the caller does then.
func (h *Hush[K]) Over(kind K) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	if last, ok := h.last[kind]; ok && now.Sub(last) < 10*time.Second {
		return false
	}
	if h.last == nil {
		h.last = make(map[K]time.Time)
	}
	h.last[kind] = now
	return true
}
