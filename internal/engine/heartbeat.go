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
// So when the rendezvous has brought a heartbeat the peer is sent a Ping without payload,
// and its Pong says how many receive slots it has seen used.
//
//	what is found                                        what ends
//	no Pong                                              the peer
//	nothing at all of any peer of the endpoint           these peers; new ones get another endpoint
//	Pongs that lack what was sent before the last Ping   the peer
//
// Each has to go on for DeadAfter, counted in heartbeats that have come: there are none
// while either process is stopped.

// ErrSilent: the peer is lost, since the fabric does not bring what it sends, or is sent.
var ErrSilent = errors.New("fabric brings no answer, though the peer lives")

var errMissing = errors.New("fabric has lost messages")

// heartbeat is what is known of one peer by heartbeats.
type heartbeat struct {
	lives   atomic.Bool   // one has come over the rendezvous; set without the lock
	at      time.Time     // when beat saw that last
	number  uint32        // of the last Ping
	asked   uint32        // Pings since an answer
	used    uint32        // peer.used before the last
	frames  uint32        // Pings and Pongs of heartbeats, of what the peer was sent
	others  uint32        // other messages to it, as of the last Pong
	lacks   bool          // which lacked something, though nothing else was sent since the one before
	silent  time.Duration // for how long it has not been answered,
	deaf    time.Duration // nothing else has come either,
	missing time.Duration // and lacks was so
	seen    uint32        // peer.seen, for deaf
}

// silence is how long it has to last, at least.
func (c *core) silence() time.Duration { return max(c.cfg.DeadAfter, choreTime) }

// beat is for chores.
func (p *peer) beat() {
	h, c := &p.beats, p.c
	if p.err != nil || !h.lives.Swap(false) {
		return
	}
	now := c.now()
	passed := min(now.Sub(h.at), c.silence()/2) // this process may have been stopped
	h.at = now
	if h.lacks {
		h.missing += passed
	}
	if h.deaf += passed; h.seen != p.seen || h.asked == 0 {
		h.seen, h.deaf = p.seen, 0
	}
	if h.asked > 0 {
		h.silent += passed
	}
	switch {
	case h.missing >= c.silence():
		c.fail(p, errMissing)
	case len(p.ctl) > 0 && p.mayCtl(): // it has no send slot: others have them
		h.silent = 0
	case h.silent >= c.silence():
		c.fail(p, fmt.Errorf("%w, for %v", ErrSilent, h.silent))
	case len(p.ctl) == 0:
		// Again, if need be: the peer may hear this side though this side hears nothing.
		h.number, h.asked, h.used = h.number+1, h.asked+1, p.used
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
	if h.number-number >= h.asked {
		return // it was answered, or there never was one
	}
	others, behind := p.used-h.frames, int32(h.used+1-seen) > 0
	if h.lacks = behind && h.asked == 1 && others == h.others && p.flying == 0; !behind {
		h.missing = 0
	}
	h.asked, h.silent, h.others = 0, 0, others
}

// isMute reports that nothing comes of any peer, now that p is lost: all receives may be in
// strangers' hands.
func (c *core) isMute(p *peer) bool {
	heard := func(q *peer) bool { return q.beats.deaf < c.silence()/2 }
	return !heard(p) && !slices.ContainsFunc(c.order, func(q *peer) bool { return !q.cfg.Unproven && heard(q) })
}
