package progress

import "time"

// A provider's call can hang when the peer dies or is stopped: see fabric.Rescuer. The
// goroutine that made the call may be the owner of the queue, or hold the endpoint's lock.
// So whoever learns that the peer is gone, and every call that promises to end (because of a
// deadline, or as Close does), makes sure that no such call stands in its way: the endpoint
// is then abandoned, and its conns are reset. While the peer is merely stopped and nothing has
// a deadline, everything waits for it.

// rescueEvery is the time between looks for calls that hang, while somebody waits.
const rescueEvery = 10 * time.Millisecond

// MayHang reports whether the provider's calls may hang.
func (p *Poller) MayHang() bool { return p.rescuer != nil }

// Rescue gets goroutines out of calls that hang. It reports whether the endpoint is abandoned.
func (p *Poller) Rescue() (abandoned bool) { return p.rescuer != nil && p.rescuer.Rescue() }

// Watch calls Rescue every now and then until the caller calls stop, which it must do once.
func (p *Poller) Watch() (stop func()) { return p.WatchAfter(0) }

// WatchAfter is like Watch, for a call that may take as long as d: it begins after that.
func (p *Poller) WatchAfter(d time.Duration) (stop func()) {
	return p.WatchFrom(func(f func()) func() bool { return time.AfterFunc(d, f).Stop })
}

// WatchFrom is like Watch, but begins only when f is called, for which begin arranges; cancel, which
// begin returns, keeps f from being called.
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

// RescueOwner is called after a wait was ended early: the owner of the queue, if there is one, may
// be in a call that hangs.
func (p *Poller) RescueOwner() {
	if p.now().taken() {
		p.Rescue()
	}
}

// RescueSoon is RescueOwner after rescueEvery. The timer it returns is nil if there is nothing to do.
func (p *Poller) RescueSoon() *time.Timer {
	if p.rescuer == nil || !p.now().taken() {
		return nil
	}
	return time.AfterFunc(rescueEvery, func() { p.Rescue() })
}
