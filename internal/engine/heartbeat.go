package engine

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/seed202c38ff/fabricnet/framing"
)

// Heartbeats over the fabric. The rendezvous tells that a peer lives; whether the fabric
// still brings its messages is another matter: strangers at the port of a software provider
// can take all posted receives, or a peer's connection, without an error (docs/security.md).
// So whenever the rendezvous has brought a heartbeat the peer is sent a Ping without payload,
// and its Pong says how many receive slots it has seen used. The peer does the same.
//
//	what is found                                        what ends
//	nothing comes of a peer, not even its Pings          the peer
//	the same of all other peers                          these peers; new ones get another endpoint
//	Pongs that lack what was sent before the last Ping   the peer
//
// Each has to go on for DeadAfter, counted in heartbeats that have come: there are none
// while either process is stopped. A Pong that is late is no sign: its Ping may be behind
// megabytes on a slow path.

// ErrSilent: the peer is lost, since the fabric brings nothing that it sends.
var ErrSilent = errors.New("fabric brings nothing of the peer, though it lives")

// ErrMissing: the peer is lost, since it has not got all that it was sent.
var ErrMissing = errors.New("fabric has lost messages to the peer")

// heartbeat is what is known of one peer by heartbeats.
type heartbeat struct {
	lives   atomic.Bool   // one has come over the rendezvous; set without the lock
	at      time.Time     // when beat saw that last
	seen    uint32        // peer.seen as of then
	deaf    time.Duration // for how long that has stayed as it was
	number  uint32        // of the last Ping
	asked   bool          // it is to be answered yet
	used    uint32        // peer.used before it
	frames  uint32        // Pings and Pongs, of what the peer was sent
	others  uint32        // other messages to it, as of the last Pong
	lacks   bool          // which lacked something, though nothing else was sent since the one before
	missing time.Duration // for how long that has been so
}

// silence is how long it has to last, at least: some heartbeats, as chores sees them.
func (c *core) silence() time.Duration { return max(c.cfg.DeadAfter, 3*choreTime) }

// beat is for chores.
func (p *peer) beat() {
	h, c := &p.beats, p.c
	if p.err != nil || !h.lives.Swap(false) {
		return
	}
	now, passed := c.now(), time.Duration(0)
	if !h.at.IsZero() {
		passed = min(now.Sub(h.at), c.silence()/2) // this process may have been stopped
	}
	h.at = now
	if h.deaf += passed; h.seen != p.seen {
		h.seen, h.deaf = p.seen, 0
	}
	if h.lacks {
		h.missing += passed
	}
	switch {
	case h.missing >= c.silence():
		c.fail(p, ErrMissing)
	case h.deaf >= c.silence():
		c.fail(p, fmt.Errorf("%w, for %v", ErrSilent, h.deaf))
	case len(p.ctl) == 0:
		h.number, h.asked, h.used = h.number+1, true, p.used
		p.control(ctlFrame{t: framing.TypePing, pos: uint64(h.number)})
	}
}

// answerBeat answers a heartbeat.
func (p *peer) answerBeat(pos uint64) {
	p.control(ctlFrame{t: framing.TypePong, pos: pos<<32 | uint64(p.seen)})
}

// beatAnswered takes in the answer to a heartbeat.
func (p *peer) beatAnswered(pos uint64) {
	h := &p.beats
	number, seen := uint32(pos>>32), uint32(pos)
	if !h.asked || number != h.number {
		return // there is a later one, or there never was one
	}
	h.asked = false
	others, behind := p.used-h.frames, int32(h.used+1-seen) > 0
	if h.lacks = behind && others == h.others && p.flying == 0; !behind {
		h.missing = 0
	}
	h.others = others
}

// isMute reports, now that p is lost, that nothing comes of any peer: all receives may be in
// strangers' hands. Where there are no peers, newcomers tell: none has been heard for some
// time, and p was none of those that never came to the fabric, as far as is known. It may
// be wrong, which costs an endpoint more.
func (c *core) isMute(p *peer) bool {
	if p.cfg.Unproven {
		proven := slices.ContainsFunc(c.order, func(q *peer) bool { return !q.cfg.Unproven })
		return p.linked && !p.answers.Load() && !proven && c.now().Sub(c.metAt) > c.silence()
	}
	heard := func(q *peer) bool {
		return !q.beats.at.IsZero() && c.now().Sub(q.beats.at) < c.silence() && q.beats.deaf < c.silence()/2
	}
	return p.beats.deaf >= c.silence()/2 && !slices.ContainsFunc(c.order, heard)
}
