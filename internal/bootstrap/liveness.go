package bootstrap

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/seed202c38ff/fabricnet/framing"
)

// minHeartbeat is the shortest interval at which a peer gets heartbeats, whatever it asks for.
const minHeartbeat = 20 * time.Millisecond

// Heartbeats cost a peer nothing, and so must not cost this side much.
const (
	// leastBeat is the least time between those that the Handler is told of. It is less than
	// minHeartbeat, since the path may bring them closer together than they were sent.
	leastBeat = minHeartbeat / 2
	// maxBeats is how many may come at once, even if others came just before: those of ten
	// minutes at the highest rate. A path on which many packets are lost may let some through
	// now and then, and in the end bring all others at once. And while a machine is suspended,
	// its clock (CLOCK_MONOTONIC, see clock_gettime(2)) stands still.
	maxBeats = 30_000
)

// liveness is what a session does by the clock: it sends heartbeats, and ends if the peer
// is silent or takes no heartbeats.
type liveness struct {
	entry
	grain time.Duration
	step  time.Duration // between heartbeats

	// Guarded by Schedule.mu, as is entry.
	next           time.Duration // the next heartbeat
	silent, wedged watch

	heard   atomic.Int64 // when something last came
	sending atomic.Int64 // since when a heartbeat is being written, 0 if none is

	// Used by the reader only.
	told   time.Duration // when the Handler was last told of a heartbeat
	credit time.Duration // see hear
}

func (l *liveness) init(every time.Duration, cfg *Config) {
	l.at = -1
	l.told, l.credit = -leastBeat, maxBeats*leastBeat
	l.grain = grain(min(every, cfg.DeadAfter/3))
	l.step = max(l.down(every), l.grain)
	l.silent.half = cfg.DeadAfter / 2
	l.wedged.half = min(sendTimeout, cfg.DeadAfter) / 2
}

// begin sets the times when everything is due first.
func (l *liveness) begin(now time.Duration) {
	l.heard.Store(int64(now))
	l.silent.look(now, now)
	l.spread(now)
	l.due = l.up(min(l.next, l.silent.due))
}

// hear takes in that heartbeats have come, and reports whether the Handler is to be told. It fails if
// they are too many: each takes leastBeat of credit, and time brings credit, twice as much as a
// peer needs that sends them as often as it may. All of the time since the last ones came counts,
// however long it is: if this process was stopped, what the peer has sent meanwhile comes at once.
// (While it runs, that time is less than DeadAfter.)
func (l *liveness) hear(beats int, now time.Duration) (news bool, err error) {
	since := now - time.Duration(l.heard.Swap(int64(now)))
	l.credit = max(l.credit, min(l.credit+since, maxBeats*leastBeat), since) - time.Duration(beats)*leastBeat
	if l.credit < 0 {
		return false, fmt.Errorf("%w: far more heartbeats than one every %v", ErrMalformed, minHeartbeat)
	}
	if news = now-l.told >= leastBeat; news {
		l.told = now
	}
	return news, nil
}

// spread puts the next heartbeat at a random time, so that sessions that begin together do
// not send together for ever.
func (l *liveness) spread(now time.Duration) {
	l.next = l.down(now + l.step/2 + rand.N(l.step/2+1))
}

// up and down round t to a time that sessions have in common.
func (l *liveness) up(t time.Duration) time.Duration   { return l.down(t + l.grain - 1) }
func (l *liveness) down(t time.Duration) time.Duration { return t / l.grain * l.grain }

// watch finds out when something has not happened for too long. It waits for the time in two
// halves: if this process was stopped for a while, as by a debugger or a container's pause, the
// first half runs out even if the peer is well.
type watch struct {
	half   time.Duration
	since  time.Duration // when it last happened, as of the last look
	halves int           // how many have run out since
	due    time.Duration // when to look next
}

// look reports whether it is now too long since it last happened, at since.
func (w *watch) look(since, now time.Duration) bool {
	if since != w.since {
		w.since, w.halves = since, 0
	}
	if w.due = since + w.half; w.due > now {
		return false
	}
	w.halves++
	w.due = now + w.half
	return w.halves == 2
}

// turn is entry.turn.
func (s *Session) turn(now time.Duration) time.Duration {
	l := &s.live
	if l.next <= now {
		if l.next += l.step; l.next <= now { // this process was stopped, with all its sessions
			l.spread(now)
		}
		if l.sending.CompareAndSwap(0, int64(now)) {
			l.wedged.look(now, now)
			go s.heartbeat()
		}
	}
	if l.silent.due <= now && l.silent.look(time.Duration(l.heard.Load()), now) {
		go s.giveUp()
		return never
	}
	next := min(l.next, l.silent.due)
	if since := time.Duration(l.sending.Load()); since > 0 {
		if l.wedged.due <= now && l.wedged.look(since, now) {
			go s.end(fmt.Errorf("%w: it takes no signals", ErrHeartbeat))
			return never
		}
		next = min(next, l.wedged.due)
	}
	return l.up(next)
}

// heartbeat sends one, in a goroutine of its own: the write may block, or wait for a lock of
// TLS, and must not hold up the heartbeats of other sessions. A session has at most one such
// goroutine. The write has no deadline, which would be one timer of the runtime for each
// session: see wedged.
func (s *Session) heartbeat() {
	defer s.live.sending.Store(0)
	s.out.Lock()
	defer s.out.Unlock()
	if h := s.speaks(); h != nil {
		s.send(framing.AppendHeartbeat(nil, h.Sent()))
	}
}

// giveUp ends the session because the peer is silent. It says goodbye: a peer that is merely slow must
// not take this process for dead, and what its provider holds of us for stale.
func (s *Session) giveUp() {
	s.leave(fmt.Errorf("%w for %v", ErrHeartbeat, s.cfg.DeadAfter))
}
