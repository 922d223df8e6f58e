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

// RescueUntil calls Rescue every now and then until done is closed.
func (p *Poller) RescueUntil(done <-chan struct{}) {
	for p.rescuer != nil && !p.Rescue() {
		select {
		case <-done:
			return
		case <-time.After(rescueEvery):
		}
	}
}

// Watch calls RescueUntil until the caller calls stop, which it must do once.
func (p *Poller) Watch() (stop func()) {
	if p.rescuer == nil {
		return func() {}
	}
	done := make(chan struct{})
	timer := time.AfterFunc(0, func() { p.RescueUntil(done) })
	return func() {
		timer.Stop()
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
