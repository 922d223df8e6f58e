package progress

import "time"

// A provider's call can hang when the peer dies, or is stopped: see
// fabric.Rescuer. The goroutine that made it may be the owner of the queue, or
// hold the endpoint's lock. So whoever learns that the peer is gone, and every
// call that promises to end (deadlines, Close), sees to it that such a call does
// not stand in its way: the endpoint is abandoned then, and its conns are reset.
// While the peer is merely stopped and nothing has a deadline, all wait for it.

// rescueEvery is how often calls that hang are looked for, while somebody waits.
const rescueEvery = 10 * time.Millisecond

// MayHang reports whether the provider's calls may.
func (p *Poller) MayHang() bool { return p.rescuer != nil }

// Rescue gets goroutines out of calls that hang.
func (p *Poller) Rescue() (abandoned bool) { return p.rescuer != nil && p.rescuer.Rescue() }

// Watch rescues until the caller calls stop, once.
func (p *Poller) Watch() (stop func()) { return p.WatchAfter(0) }

// WatchAfter is Watch for a call that may take so long.
func (p *Poller) WatchAfter(d time.Duration) (stop func()) {
	return p.WatchFrom(func(f func()) func() bool { return time.AfterFunc(d, f).Stop })
}

// WatchFrom is Watch from when begin calls f; cancel keeps it from that.
func (p *Poller) WatchFrom(begin func(f func()) (cancel func() bool)) (stop func()) {
	if p.rescuer == nil {
		return func() {}
	}
	done := make(chan struct{})
	cancel := begin(func() {
		for !p.Rescue() {
			select {
			case <-done:
				return
			case <-time.After(rescueEvery):
			}
		}
	})
	return func() {
		cancel()
		close(done)
	}
}

// RescueOwner is for whom a wait was just ended: the owner of the queue, if there is one,
// may be in a call that hangs.
func (p *Poller) RescueOwner() {
	if p.now().taken() {
		p.Rescue()
	}
}

// RescueSoon is RescueOwner in a while. The timer is nil if there is nothing to do.
func (p *Poller) RescueSoon() *time.Timer {
	if p.rescuer == nil || !p.now().taken() {
		return nil
	}
	return time.AfterFunc(rescueEvery, func() { p.Rescue() })
}
