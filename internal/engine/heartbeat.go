package engine

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/seed202c38ff/fabricnet/framing"
)

// Heartbeats over the fabric. The control connection tells that a peer is alive. Whether the
// fabric brings its messages, and all of them, is another matter: strangers at the port of a
// software provider can take all posted receives, or a peer's connection, and a provider may lose
// a message, all without an error (docs/security.md). So each side counts the messages that it
// sends, in epochs that are alternately odd and even. A heartbeat of the control connection ends an
// epoch. A Ping then says how many messages have been sent so far in all odd epochs, or in all even
// ones, and a Pong that as many have arrived. Only then may the next epoch end. So the count is
// exact under load, in whatever order messages arrive.
//
//	what is found                                        what ends
//	nothing comes from a peer, not even its Pings        the peer
//	nothing comes from any other peer either             these peers; new ones get another endpoint
//	messages of an epoch that has ended do not come      the peer
//
// Each has to last for some time, counted in heartbeats that come, since none come while either
// process is stopped. They come at least three times in DeadAfter, so all of it together takes at
// most the DeadAfter of the more patient side. A late Pong is no sign of loss: its Ping may be
// behind megabytes on a slow path.
//
// The first Ping of each epoch takes the receive slot that is reserved for it, once the peer
// has said that this slot is free. Other Pings take a credit, and go before all other control
// frames: lost messages have taken their credits along, and too few may be left for all. A peer
// that is left without credits falls silent. A Ping that is lost itself counts in the epoch after
// the one whose end it says; so that epoch ends as soon as it may, and not at the next heartbeat.
// On a slow path a peer's credits may be behind megabytes that we write to its rings. As long as
// these writes complete, which they cannot do without the peer, it is not taken for lost.

// ErrSilent: the peer is lost, since the fabric brings nothing that it sends.
var ErrSilent = errors.New("fabric brings nothing of the peer, though it lives")

// ErrMissing: the peer is lost, since not everything that it sent has come.
var ErrMissing = errors.New("fabric has lost messages of the peer")

// heartbeat is what heartbeats have told about one peer.
type heartbeat struct {
	coming atomic.Bool   // one has come over the control connection, and is about to be taken in; set without the lock
	at     time.Time     // when the last one was taken in
	frames uint32        // frames, and writes with completion data, that have come
	heard  uint32        // frames, as of then
	done   uint32        // our writes to its rings that have completed
	went   uint32        // done, as of then
	deaf   time.Duration // for how long neither count has grown

	epoch uint32    // the one in which we send
	sent  [2]uint32 // messages sent in all even and in all odd epochs
	asked uint32    // how often the end of the one before was to be said; 0 once it is confirmed
	again bool      // a Ping that takes a credit is still to be sent
	slots uint32    // reserved receive slots that our Pings have taken
	freed uint32    // of these, free again, as the peer has said

	came       [2]uint32     // messages that have come, by the same
	ended      framing.Beat  // what the peer said at the end of its last epoch
	ends       uint32        // epochs of the peer that have ended
	awaited    bool          // not all messages of the last one have come
	movedAt    time.Time     // when one of them last came, or its end
	missing    time.Duration // for how long none has come, as of the last beat
	answers    bool          // listed in core.pongs
	taken      uint32        // reserved receive slots that its Pings have taken
	advertised uint32        // of these, as of the last Pong
}

// beat takes in a heartbeat: the peer is alive.
func (p *peer) beat() {
	h, c, dead := &p.beats, p.c, p.c.cfg.DeadAfter
	h.coming.Store(false)
	now := c.now()
	if p.err != nil {
		return
	}
	if h.at.IsZero() {
		h.at = now
	}
	stopped := now.Sub(h.at) > dead*2/5 // this process was, or the peer
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
		p.doom(fmt.Errorf("%w: %d, for %v", ErrMissing, h.ended.Messages-h.came[h.ended.Epoch&1], h.missing))
	case h.deaf >= dead/2:
		p.doom(fmt.Errorf("%w, for %v", ErrSilent, h.deaf))
	default:
		p.ping()
	}
}

// ping ends the epoch in which we send, or says again that the last one has ended.
func (p *peer) ping() {
	h := &p.beats
	if h.asked > 0 && p.prepaid.len() > 0 {
		return // the last Ping may be among them
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

// end is the Ping that says that the epoch before the current one has ended.
func (h *heartbeat) end() ctlFrame {
	last := h.epoch - 1
	return ctlFrame{t: framing.TypePing, pos: framing.Beat{Epoch: last, Messages: h.sent[last&1]}.Pos()}
}

// count counts a message that is about to be sent, and returns the number of its epoch.
func (h *heartbeat) count() uint32 {
	h.sent[h.epoch&1]++
	return h.epoch
}

// counted takes in that a message of an odd, or even, epoch has come.
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

// checkEpoch confirms the end of the peer's last epoch, if all of its messages have come.
func (p *peer) checkEpoch() {
	h := &p.beats
	if h.awaited = h.came[h.ended.Epoch&1] != h.ended.Messages; !h.awaited {
		p.confirm()
	}
}

// confirm has the end of the peer's epoch answered, once the receives are posted again: its
// Ping has taken one of them.
func (p *peer) confirm() {
	if !p.beats.answers {
		p.beats.answers = true
		p.c.pongs = append(p.c.pongs, p)
	}
}

// sendPongs answers Pings, unless receives are still to be posted.
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

// epochEnded takes in that an epoch of the peer has ended, which the peer may say more than once.
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

// epochConfirmed takes in that all messages of an epoch of ours have arrived.
func (p *peer) epochConfirmed(pos uint64) {
	p.c.stats.Heartbeats++
	h, b := &p.beats, framing.BeatOf(pos)
	if framing.SlotsAfter(b.Messages, h.freed) > 0 {
		h.freed = b.Messages
	}
	if b.Epoch == h.epoch-1 {
		repeated := h.asked > 1
		if h.asked, h.again = 0, false; repeated { // a Ping may have been lost, in the current epoch
			p.ping()
		}
	}
}

// isMute reports, now that p is lost, whether nothing comes from any peer: strangers may hold
// all receives. Where there are no other peers, newcomers tell: it is so if none has been heard for
// more than DeadAfter and p, as far as is known, did get to the fabric. isMute may be wrong, which
// costs one more endpoint.
func (c *core) isMute(p *peer) bool {
	if p.cfg.Unproven {
		return p.linked && !p.answers.Load() && c.attached == 0 && c.now().Sub(c.metAt) > c.cfg.DeadAfter
	}
	half := c.cfg.DeadAfter / 2
	return p.beats.deaf >= half && c.now().Sub(c.heardAt) >= half
}
