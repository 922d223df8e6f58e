package progress

// modelFD is a wait object. An arrival makes it readable only if fi_trywait has found it safe to sleep
// since the last arrival.
type modelFD struct {
	m             *model
	ready         bool // fi_trywait has armed it
	readable      bool // something has come since
	watched       bool
	bell, watcher modelBell
}

func (f *modelFD) arrived() {
	if !f.ready && !f.m.blind {
		return
	}
	f.ready, f.readable, f.bell.edge = false, true, true
	if f.watched {
		f.watcher.edge = true
	}
}

// TryWait implements fabric.Waiter.
func (f *modelFD) TryWait() (bool, error) {
	m := f.m
	m.step()
	if len(m.queue) > 0 && m.notice != byDeafFD && !m.blind || m.oneIn(10) {
		m.step()
		return false, nil
	}
	f.ready, f.readable = true, false
	m.step()
	return true, nil
}

// Bell, Watcher and Watch implement fabric.Waiter.
func (f *modelFD) Bell() Bell    { return &f.bell }
func (f *modelFD) Watcher() Bell { return &f.watcher }
func (f *modelFD) Watch(on bool) bool {
	f.m.check(f.watched != on, "watching %v twice", on)
	f.watched = on
	return on && f.readable
}

// modelBell is a bell. A ring (edge) wakes only a goroutine that is in Sleep by then; Wake ends Sleep, and is
// remembered.
type modelBell struct {
	m     *model
	edge  bool
	woken bool
	sleep int // goroutines in Sleep
}

// Sleep implements Bell, as a FIFO does, or a wait object.
func (b *modelBell) Sleep(ready func() bool) error {
	b.sleep++
	b.m.check(b.sleep == 1, "two goroutines sleep on one bell")
	defer func() { b.sleep-- }()
	b.edge = false // whatever came before is lost
	for b.m.step(); !ready(); b.edge = false {
		b.m.step()
		b.m.block(func() bool { return b.edge || b.woken })
		if b.woken {
			b.woken = false
			return nil
		}
	}
	return nil
}

// Wake implements Bell.
func (b *modelBell) Wake() { b.woken = true }
