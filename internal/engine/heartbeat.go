package engine

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/seed202c38ff/fabricnet/framing"
)

// Heartbeats over the fabric. The control connection tells that a peer lives; whether the fabric
// brings its messages, and all of them, is another matter: strangers at the port of a software
// provider can take all posted receives, or a peer's connection, and a provider may lose a
// message, without an error (docs/security.md). So each side counts what it sends, in epochs
// that alternate between odd and even. A heartbeat of the control connection ends one, and a Ping
// says how many messages have been sent in all that were odd, or even; a Pong that as many have
// come. Only then may the next epoch end. So the count is exact under load, in whatever order
// messages arrive.
//
//	what is found                                        what ends
//	nothing comes of a peer, not even its Pings          the peer
//	the same of all other peers                          these peers; new ones get another endpoint
//	messages of an epoch that has ended do not come      the peer
//
// Each has to go on for some time, counted in heartbeats that have come: there are none
// while either process is stopped. They come three times in DeadAfter at least, and so all of
// it together takes DeadAfter at most, of the more patient side. A Pong that is late is no
// sign: its Ping may be behind megabytes on a slow path.
//
// The first Ping of each epoch takes the receive slot that is reserved for it, once the peer
// has said that it is free; others a credit, before all other control frames, for which there
// may be too few left where messages were lost with theirs. A peer that is left without any
// falls silent. A Ping that was lost itself counts in the epoch after the one whose end it
// says: that ends as soon as it may, and not at the next heartbeat. On a slow path a peer's
// credits may be behind megabytes that we write to its rings: as long as these complete, which
// cannot go on without it, it is not taken for lost.

// ErrSilent: the peer is lost, since the fabric brings nothing that it sends.
var ErrSilent = errors.New("fabric brings nothing of the peer, though it lives")

// ErrMissing: the peer is lost, since not all has come that it sent.
var ErrMissing = errors.New("fabric has lost messages of the peer")

// heartbeat is what is known of one peer by heartbeats.
type heartbeat struct {
	coming atomic.Bool   // one has come over the control connection, and is about to be taken in; set without the lock
	at     time.Time     // when the last one was
	frames uint32        // that have come, and writes with completion data
	heard  uint32        // of these, as of then
	done   uint32        // writes to its rings that have completed
	went   uint32        // of these, as of then
	deaf   time.Duration // for how long there have been no more of either

	epoch uint32    // in which we send
	sent  [2]uint32 // messages, by whether their epoch is odd
	asked uint32    // times that the end of the one before was to be said, 0 once it is confirmed
	again bool      // a Ping that takes a credit is still to be sent
	slots uint32    // reserved ones that our Pings have taken
	freed uint32    // of these, as the peer has said

	came       [2]uint32     // messages, by the same
	ended      framing.Beat  // the peer's last
	ends       uint32        // epochs of the peer's that have ended
	awaited    bool          // not all of the last one has come
	movedAt    time.Time     // when some of it did, or its end
	missing    time.Duration // for how long none has, as of the last beat
	answers    bool          // listed in core.pongs
	taken      uint32        // reserved slots
	advertised uint32        // of these, as of the last Pong
}

// leastBeat is how often heartbeats are taken in at most, however often a peer sends them: a
// control connection does so half as often (minHeartbeat), to a peer whose DeadAfter is the shortest.
const leastBeat = 10 * time.Millisecond

// beat takes in that the peer lives.
func (p *peer) beat() {
	h, c, dead := &p.beats, p.c, p.c.cfg.DeadAfter
	h.coming.Store(false)
	now := c.now()
	if p.err != nil || now.Sub(h.at) < leastBeat {
		return
	}
	if h.at.IsZero() {
		h.at = now
	}
	stopped := now.Sub(h.at) > dead*2/5 // this process, or the peer
	passed := func(since time.Time) time.Duration {
		if stopped {
			return 0
		}
		return min(now.Sub(since), dead/3)
	}
	h.deaf += passed(h.at)
	if h.went != h.done {
		h.went, h.deaf = h.done, 0
	}
	if h.heard != h.frames {
		h.heard, h.deaf, c.heardAt = h.frames, 0, now
	}
	switch {
	case !h.awaited:
	case h.movedAt.After(h.at):
		h.missing = passed(h.movedAt)
	default:
		h.missing += passed(h.at)
	}
	h.at = now
	switch {
	case h.awaited && h.missing >= dead/4:
		c.fail(p, fmt.Errorf("%w: %d, for %v", ErrMissing, h.ended.Messages-h.came[h.ended.Epoch&1], h.missing))
	case h.deaf >= dead/2:
		c.fail(p, fmt.Errorf("%w, for %v", ErrSilent, h.deaf))
	default:
		p.ping()
	}
}

// ping ends the epoch in which we send, or says so again.
func (p *peer) ping() {
	h := &p.beats
	if h.asked > 0 && p.prepaid.len() > 0 {
		return // the last Ping may be there
	}
	if h.asked == 0 {
		h.epoch++
	}
	h.asked++
	if h.slots == h.freed {
		h.slots++
		f := h.end()
		f.flags = framing.FlagReserved
		p.prepaid.push(f)
	} else {
		h.again = true
	}
	p.c.touch(p)
}

// end is the Ping that says that the epoch before this one has ended.
func (h *heartbeat) end() ctlFrame {
	last := h.epoch - 1
	return ctlFrame{t: framing.TypePing, pos: framing.Beat{Epoch: last, Messages: h.sent[last&1]}.Pos()}
}

// count counts a message that is about to be sent, and returns the number of its epoch.
func (h *heartbeat) count() uint32 {
	h.sent[h.epoch&1]++
	return h.epoch
}

// counted takes in that a message has come.
func (p *peer) counted(odd bool) {
	h, i := &p.beats, 0
	if odd {
		i = 1
	}
	h.came[i]++
	h.frames++
	if h.awaited && h.ended.Epoch&1 == uint32(i) {
		h.movedAt = p.c.now()
		p.checkEpoch()
	}
}

// checkEpoch has the end of the peer's epoch confirmed, if all of it has come.
func (p *peer) checkEpoch() {
	h := &p.beats
	if h.awaited = h.came[h.ended.Epoch&1] != h.ended.Messages; !h.awaited {
		p.confirm()
	}
}

// confirm answers the end of the peer's epoch, once the receives are posted again, of which
// its Ping has taken one.
func (p *peer) confirm() {
	if !p.beats.answers {
		p.beats.answers = true
		p.c.pongs = append(p.c.pongs, p)
	}
}

// sendPongs answers Pings, if there is no receive to be posted.
func (c *core) sendPongs() {
	if len(c.recvs) > 0 {
		return
	}
	for _, p := range c.pongs {
		h := &p.beats
		c.stats.steps++
		if h.answers = false; h.awaited { // another epoch has ended since
			continue
		}
		h.advertised = h.taken
		p.control(ctlFrame{t: framing.TypePong, pos: framing.Beat{Epoch: h.ended.Epoch, Messages: h.taken}.Pos()})
	}
	c.pongs = c.pongs[:0]
}

// reserved takes in a Ping that has taken the slot reserved for it.
func (p *peer) reserved(h *framing.Header, payload []byte) error {
	if h.Type != framing.TypePing || len(payload) > 0 || p.beats.taken != p.beats.advertised {
		return fmt.Errorf("%w: it takes a slot that is reserved", errProtocol)
	}
	p.beats.taken++
	p.counted(h.Flags&framing.FlagOdd != 0)
	return p.epochEnded(h.Pos)
}

// epochEnded takes in that an epoch of the peer's has ended, or hears it again.
func (p *peer) epochEnded(pos uint64) error {
	p.c.stats.Heartbeats++
	h, b := &p.beats, framing.BeatOf(pos)
	switch ahead := framing.SlotsAfter(b.Epoch, h.ends); {
	case ahead > 0 || ahead == 0 && (h.awaited || framing.SlotsAfter(b.Messages, h.came[b.Epoch&1]) < 0):
		return fmt.Errorf("%w: its epoch %d ends out of turn", errProtocol, b.Epoch)
	case ahead == 0:
		h.ends++
		h.ended, h.awaited, h.movedAt = b, true, p.c.now()
		p.checkEpoch()
	case ahead == -1 && !h.awaited: // the answer may have been lost
		p.confirm()
	}
	return nil
}

// epochConfirmed takes in that all has come of an epoch of ours.
func (p *peer) epochConfirmed(pos uint64) {
	p.c.stats.Heartbeats++
	h, b := &p.beats, framing.BeatOf(pos)
	if framing.SlotsAfter(b.Messages, h.freed) > 0 {
		h.freed = b.Messages
	}
	if b.Epoch == h.epoch-1 {
		repeated := h.asked > 1
		if h.asked, h.again = 0, false; repeated { // a Ping may have been lost, in the epoch that goes on
			p.ping()
		}
	}
}

// isMute reports, now that p is lost, that nothing comes of any peer: all receives may be in
// strangers' hands. Where there are no peers, newcomers tell: none has been heard for some
// time, and p was none of those that never came to the fabric, as far as is known. It may
// be wrong, which costs an endpoint more.
func (c *core) isMute(p *peer) bool {
	if p.cfg.Unproven {
		return p.linked && !p.answers.Load() && c.attached == 0 && c.now().Sub(c.metAt) > c.cfg.DeadAfter
	}
	half := c.cfg.DeadAfter / 2
	return p.beats.deaf >= half && c.now().Sub(c.heardAt) >= half
}
