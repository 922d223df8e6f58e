package engine

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/fabric"
)

// The control connection tells that a peer is alive. Whether the fabric brings its messages is
// another matter: strangers at the port of a software provider can take all posted receives, or a
// peer's connection, and a provider may lose a message, all without an error (docs/security.md). So
// heartbeats of the control connection say how many messages were sent in all (framing/SPEC.md,
// section 9.7).
//
//	what is found                                                     what ends
//	fewer messages have come than a heartbeat has said, and for       the peer
//	DeadAfter/2 none came
//	the same, and nothing came from any other peer, either            the peer; new ones get another endpoint
//	for DeadAfter a stream could not take in what has come, since     the peer
//	something before it is missing, and no write of the peer landed,
//	or more than can have been on their way
//
// A slow path may bring the end of a stream's data long before the writes that precede it, behind those of
// other streams. Then these land, but no more of them than rings take at a time.
//
// Both times are counted in heartbeats that come, since none come while either process is stopped.
// They come at least three times in DeadAfter: the first after a loss tells of it, and two later
// DeadAfter/2 is over. It is no less than that since strangers can hold the receives of libfabric's net
// provider for a while and let go of them, which delays messages.

// ErrMissing: the peer is lost, since not everything that it sent has come.
var ErrMissing = errors.New("fabric has lost messages of the peer")

// tally counts the messages between two peers: frames, and writes with completion data. All counts
// are modulo 2^32.
type tally struct {
	sent   atomic.Uint32 // messages sent, as heartbeats to the peer say; read without the lock
	latest uint32        // one more than the tag of the operation that was posted last, while that is in flight

	told    atomic.Uint32 // as the peer's last heartbeat said; set without the lock, as coming is
	coming  atomic.Bool   // a heartbeat has come, and is about to be taken in
	came    uint32        // messages that have come
	at      time.Time     // when the last heartbeat was taken in
	had     uint32        // came, as of then
	due     uint32        // told, as of then: so many are to come
	missing time.Duration // for how long fewer have come, and none more
	landed  uint32        // peer.landed, as of the last heartbeat
}

// gap is for how long a stream waits for something that precedes what has come.
type gap struct {
	at     uint64 // where it begins
	lasts  time.Duration
	behind uint32 // peer.landed once all has landed that was on its way when the gap was first seen
}

// countPosted counts an operation that was posted. On a slow path a frame may be behind megabytes, so it
// counts once the operation before it has completed, and a write once it has completed itself.
func (p *peer) countPosted(op *fabric.Op) {
	t := &p.tally
	before := t.latest
	if op.Kind != fabric.Inject {
		t.latest = op.Tag + 1
	}
	switch {
	case op.Kind == fabric.Write:
	case op.Kind == fabric.WriteData:
		p.c.ops[op.Tag].messages++
	case before == 0:
		t.sent.Add(1)
	default:
		p.c.ops[before-1].messages++
	}
}

// countDone counts the messages that waited for the operation tag, which has completed.
func (p *peer) countDone(tag, messages uint32) {
	if messages > 0 {
		p.tally.sent.Add(messages)
	}
	if p.tally.latest == tag+1 {
		p.tally.latest = 0
	}
}

// beat takes in a heartbeat: the peer is alive. It reports whether loss has something to say.
func (p *peer) beat() (loses bool) {
	t, c := &p.tally, p.c
	t.coming.Store(false)
	if p.err != nil {
		return false
	}
	now, passed := c.now(), time.Duration(0)
	if since := now.Sub(t.at); !t.at.IsZero() && since <= c.cfg.DeadAfter*2/5 { // else this process was stopped, or the peer
		passed = since
	}
	if c.heard {
		c.heard, c.heardAt, c.mute = false, now, false
		c.updateTakes()
	}
	if t.came == t.had && t.lacks() > 0 {
		t.missing += passed
	} else {
		t.missing = 0
	}
	landed := p.landed != t.landed
	t.at, t.had, t.due, t.landed = now, t.came, t.told.Load(), p.landed
	for _, s := range p.list {
		switch {
		case !s.stands():
			s.gap = gap{at: s.rcvNxt, behind: p.landed + uint32(2*framing.MaxWrites*p.ringed)} // a stream has two rings at most
		case landed && int32(s.gap.behind-p.landed) >= 0:
			s.gap.lasts = 0
		default:
			s.gap.lasts += passed
		}
	}
	return p.loss() != nil
}

// lacks is how many messages are still to come of those that the last heartbeat has told of.
func (t *tally) lacks() int32 { return framing.SlotsAfter(t.due, t.came) }

// loss says what the fabric has lost, as of the last heartbeat and as far as nothing has come since.
func (p *peer) loss() error {
	t, dead := &p.tally, p.c.cfg.DeadAfter
	if t.came == t.had && t.missing >= dead/2 {
		return fmt.Errorf("%w: %d, for %v", ErrMissing, t.lacks(), t.missing)
	}
	for _, s := range p.list {
		if s.gap.lasts >= dead && s.stands() {
			return fmt.Errorf("%w: what precedes other data of a conn, for %v", ErrMissing, s.gap.lasts)
		}
	}
	return nil
}

// stands reports whether the stream waits where it waited at the last heartbeat.
func (s *stream) stands() bool { return s.gap.at == s.rcvNxt && s.hasGap() }

// hasGap reports whether something of the stream has come that cannot be taken in yet. A peer that
// announces its writes only after their completion may do so long after what follows them.
func (s *stream) hasGap() bool {
	if s.discarding() || s.recv == recvEOF || s.recv == recvCut || s.p.rule == byDeliver {
		return false
	}
	return len(s.held) > 0 || s.recv == recvFin || s.inLease.waits() || s.nextLease.waits()
}

// waits reports whether a write was announced, or has landed, that was not taken in yet.
func (l *inLease) waits() bool {
	return l != nil && slices.ContainsFunc(l.writes[:], func(w landing) bool { return w.announced || w.landed })
}

// isMute reports, now that p is lost, whether nothing comes from any peer: strangers may hold
// all receives. Where there are no other peers, newcomers tell: it is so if none has been heard for
// more than DeadAfter and p, as far as is known, did get to the fabric. isMute may be wrong, which
// costs one more endpoint until something comes.
func (c *core) isMute(p *peer) bool {
	if p.cfg.Unproven {
		known := slices.ContainsFunc(c.order, func(o *peer) bool { return !o.cfg.Unproven })
		return p.linked && !p.answers.Load() && !known && c.now().Sub(c.metAt) > c.cfg.DeadAfter
	}
	return errors.Is(p.err, ErrMissing) && c.now().Sub(c.heardAt) >= c.cfg.DeadAfter/2
}
