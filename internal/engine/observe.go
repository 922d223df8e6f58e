package engine

import "time"

// Callers that only look must not be held up by a provider's call that hangs: it is when
// conns hang that somebody looks. See progress.Poller.Rescue.

// observeTime is how long a look waits for the endpoint's lock.
const observeTime = 500 * time.Millisecond

// observe calls f with the endpoint locked, and reports whether it could.
func (e *Endpoint) observe(f func()) bool {
	if !e.poller.MayHang() {
		e.mu.Lock()
	} else {
		for start := time.Now(); !e.mu.TryLock(); time.Sleep(100 * time.Microsecond) {
			if time.Since(start) > observeTime {
				return false
			}
		}
	}
	defer e.mu.Unlock()
	f()
	return true
}

// Stats returns a snapshot of the endpoint's counters, or an earlier one while a
// call hangs.
func (e *Endpoint) Stats() Stats {
	s := new(Stats)
	looked := e.observe(func() {
		*s = e.snapshot()
		e.last.Store(s)
	})
	if looked {
		return *s
	}
	if last := e.last.Load(); last != nil {
		return *last
	}
	s.Endpoints, s.Provider = 1, e.attr.Provider
	return *s
}

// snapshot returns the same for good once the endpoint is closed: what is counted late,
// such as a doorbell, must not be seen by some callers and not by others.
func (e *Endpoint) snapshot() Stats {
	if e.final != nil {
		return *e.final
	}
	s := e.core.stats
	s.Provider = e.attr.Provider
	s.Free = e.core.left()
	s.Endpoints = 1
	if e.core.isStale() {
		s.Stale = 1
	}
	for _, p := range e.core.order {
		if !p.cfg.itself {
			s.Peers++
		}
		s.LandingMemory += p.landing.Stats().Mapped
	}
	counts := e.poller.Stats()
	s.Polls = max(s.Polls, counts.Polls)
	s.PollsEmpty = s.Polls - s.pollsFull
	s.BytesSent, s.BytesReceived = s.SmallSent+s.RDMABytesSent, s.SmallReceived+s.RDMABytesReceived
	s.Copies.Staged = s.BytesSent - s.Copies.Unstaged - s.Copies.Mapped
	s.Parks, s.Polling = counts.Parks, counts.Polling
	if counts.PollTime > 0 && s.Peers > 0 {
		s.Polling.Endpoints = 1
	}
	return s
}

// State is a snapshot of a conn.
type State struct {
	Counters
	Phase   Phase
	Unread  uint64 // bytes that have arrived and have not been read
	Reading bool   // a Read waits
	Waits   Waits  // what a Write or Close waits for
}

// Phase says which directions of a conn have ended.
type Phase uint8

// The phases of a conn.
const (
	Unknown     Phase = iota // a call hangs
	Open                     // neither has
	WriteClosed              // this side's has
	ReadClosed               // the peer's has
	Ended                    // both have: Close is still to come
	Closing                  // Close was called, and waits
	Reset                    // both have, by an error
)

// Waits says what a Write or Close waits for. Most are counted in Stalls, too.
type Waits uint8

// What a Write or Close waits for.
const (
	WaitsNothing   Waits = iota
	WaitsWindow          // the peer's receive window
	WaitsRing            // the landing ring
	WaitsPeerSlots       // the peer's receive slots
	WaitsSendSlots       // send slots of this side
	WaitsStage           // staging memory of this side
	WaitsQueue           // the fabric's transmit queue
	WaitsTurn            // other conns' writers, which came before
	WaitsDelivery        // Close: for the peer to have everything
)

// observeBatch is how many conns are looked at each time the lock is held.
const observeBatch = 256

// PollTime is how long a call that waited now would poll.
func (e *Endpoint) PollTime() time.Duration { return e.poller.Stats().PollTime }

// States returns a snapshot of each of the conns, which must be the endpoint's. While a call
// hangs, some have no more than the Counters that were last seen.
func (e *Endpoint) States(conns []*Conn) []State {
	states := make([]State, len(conns))
	for from := 0; from < len(conns); from += observeBatch {
		to := min(from+observeBatch, len(conns))
		looked := e.observe(func() {
			for i, c := range conns[from:to] {
				states[from+i] = c.stream.state()
				c.saw()
			}
		})
		if looked {
			continue
		}
		for i, c := range conns[from:] {
			states[from+i].Counters = c.lastSeen()
		}
		break
	}
	return states
}

// Seen returns what the conn has moved, or what was last seen of that while a call hangs.
func (c *Conn) Seen() Counters {
	c.e.observe(c.saw)
	return c.lastSeen()
}

// saw notes what lastSeen returns. It is called with the endpoint locked.
func (c *Conn) saw() {
	n := c.stream.info
	c.seen.Store(&n)
}

func (c *Conn) lastSeen() Counters {
	if n := c.seen.Load(); n != nil {
		return *n
	}
	return Counters{}
}

func (s *stream) state() State {
	unread := s.smallIn - s.smallRead + s.largeIn - s.largeRead
	if s.closed() {
		unread = 0 // nobody will read it
	}
	return State{Counters: s.info, Phase: s.phase(), Unread: unread, Reading: s.rd.waiting, Waits: s.waits()}
}

func (s *stream) phase() Phase {
	switch {
	case s.closed():
		return Closing
	case s.err != nil:
		return Reset
	case s.peerClosed, s.recv.ends() && s.send != sendOpen:
		return Ended
	case s.recv.ends():
		return ReadClosed
	case s.send != sendOpen:
		return WriteClosed
	}
	return Open
}

func (s *stream) waits() Waits {
	p := s.p
	switch {
	case !s.wr.waiting:
		return WaitsNothing
	case s.closed():
		return WaitsDelivery
	case p.stalled:
		return WaitsQueue
	}
	if w := s.lacks(s.conn.left); w != WaitsNothing {
		return w
	}
	return WaitsTurn
}
