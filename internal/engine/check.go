package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/pool"
)

// The path check: before a peer carries conns, a stream of its own has moved both ways what conns will
// move, small and large, by the same code, and both sides have compared it. So a provider that does not
// do what it says is noticed here, and not in a user's data.
//
//	dialing side                                    listening side
//	Open, to checkListener
//	                                                Accept, and a ring: Lease
//	a ring
//	a frame as long as frames get, then writes      the same, with a pattern of its own
//	into all of the ring
//	                                                compares: the peer is checked; Fin
//	compares: Check returns, and Confirm follows on
//	the control connection; closes the stream
//	                                                closes the stream: see endCheck
//
// A side that finds something wrong says so by a Reset. What is missing is not found: Check waits until
// its context ends. The rings are granted unasked, and not asked back. Their memory is there when the peer is
// made, and goes with the check: to the next newcomer, or for good (see keptRings). A stranger gets no other.
// The large part waits for the ring; conns would send it in frames until then. So no way of moving data is used
// later that the check has not used.

const (
	// checkListener is the number that no listener has: what is opened towards it is a path check.
	checkListener = 0
	// checkLarge is how much is written to the ring, in bytes, which has room for all of it, and checkCopied how
	// much if the ring is mapped. Two writes make it up, of which the second continues the first.
	checkLarge  = 64 << 10
	checkCopied = 16 << 10
	// checkChunks is how many staging chunks it has in flight at most: one for each write.
	checkChunks = 2
)

// checkState is how far a peer's path check has come.
type checkState uint8

const (
	checkNone   checkState = iota // has not begun
	checkRuns                     // there is a stream for it
	checkPassed                   // what the peer sends has arrived, and is right; our own writes have completed
	checkFailed
)

// pathCheck is the check that is made before there are conns.
type pathCheck struct {
	check       checkState
	checkErr    error      // checkFailed: why
	checkStream *stream    // as long as there is one
	checked     waiter     // signalled when the check ends
	checkRing   *pool.Slab // given back, and to be kept once the handshake has succeeded
}

// ErrContents: the fabric delivers something other than what was sent.
var ErrContents = errors.New("the fabric delivers wrong contents")

// ErrUnmapped: the peer's memory cannot be mapped, or none can be made that it could map.
var ErrUnmapped = errors.New("the two processes cannot map each other's memory")

// keptRings is how many rings of path checks that are over are kept, at most, for those that come next: to map one
// takes a quarter of a dial. They are of peers with which the handshake has succeeded, so no stranger knows their keys;
// and these peers write to them no more, unless they break the protocol. Mapped rings belong to one peer each, and are
// not kept; chores give back the others.
const keptRings = 8

// mapForCheck gives the peer its first landing memory: the ring for its path check. The caller holds the
// lock, which is given up to map it.
func (e *Endpoint) mapForCheck(landing *pool.Arena) error {
	c := e.core
	if last := len(c.checkRings) - 1; last >= 0 {
		landing.Add(c.checkRings[last])
		c.checkRings = c.checkRings[:last]
		return nil
	}
	slab, err := e.mapSlab(func() (*pool.Slab, error) { return landing.Map(c.checkRing()) })
	switch {
	case err == nil:
		landing.Add(slab)
		return nil
	case c.err == nil && c.rule == byCopy && !errors.Is(err, pool.ErrBudget): // memfd_create(2) is forbidden, or descriptors are short
		return fmt.Errorf("%w: %w", ErrUnmapped, err)
	}
	return cmp.Or(c.err, fmt.Errorf("%w: for the path check: %w", ErrMemory, err))
}

// keepCheckRing takes the ring of a path check that is over.
func (p *peer) keepCheckRing() {
	for _, slab := range p.landing.Trim(0) {
		if p.c.rule != byCopy && len(slab.Bytes()) == checkLarge && p.checkRing == nil && p.err == nil {
			p.checkRing = slab
		} else {
			p.c.discard(slab)
		}
	}
	p.passCheckRing()
}

// passCheckRing leaves the ring to the next newcomer, once the handshake has succeeded, or gives it back.
func (p *peer) passCheckRing() {
	c, ring := p.c, p.checkRing
	switch {
	case ring == nil || p.err == nil && (p.check != checkPassed || p.cfg.Unproven):
		return
	case p.err == nil && len(c.checkRings) < keptRings:
		c.checkRings = append(c.checkRings, ring)
	default:
		c.discard(ring)
	}
	p.checkRing = nil
}

// dropCheckRings gives the rings back that no path check uses.
func (c *core) dropCheckRings() {
	c.discard(c.checkRings...)
	c.checkRings = nil
}

// Check moves small and large data to the peer and back, as the dialing side, and waits until both
// sides have compared it. Its error wraps ErrContents if something other than what was sent arrived, and
// the cause of ctx if nothing did.
func (p *Peer) Check(ctx context.Context) error {
	e, q := p.e, p.p
	stop := context.AfterFunc(ctx, func() { e.expire(q.checked.signal) })
	defer stop()
	e.enter()
	defer e.leave()
	q.startCheck()
	for q.check == checkRuns && q.err == nil && ctx.Err() == nil {
		q.checked.prepare()
		e.leave()
		e.wait(&q.checked, "rdmanet.Check")
		e.enter()
	}
	switch {
	case q.check == checkPassed:
		return nil
	case q.check == checkFailed:
		return fmt.Errorf("provider %s: %w", e.attr.Provider, q.checkErr)
	case q.err != nil:
		return q.err
	}
	return fmt.Errorf("provider %s: no answer over the fabric: %w", e.attr.Provider, context.Cause(ctx))
}

// startCheck begins the path check, as the dialing side.
func (p *peer) startCheck() {
	if s, err := p.open(checkListener); err == nil {
		p.beginCheck(s)
	} else if p.err == nil {
		p.failCheck(err)
	}
}

// mayCheck reports whether the peer may begin a path check: once, and if it dials.
func (p *peer) mayCheck() bool {
	return p.check == checkNone && (p.cfg.Unproven || p.cfg.Accept != nil)
}

// beginCheck begins the path check on its stream.
func (p *peer) beginCheck(s *stream) {
	p.check, p.checkStream = checkRuns, s
	p.c.touch(p)
}

// checkSize is how many bytes are sent by a side that writes by the rule: the pattern of the proof in its
// frames. So the two sides send different things, and no other pair sends either.
func (p *peer) checkSize(rule Rule) uint64 {
	if rule == byNothing {
		return uint64(p.eager)
	}
	return uint64(p.eager + p.c.checkRing())
}

// checkRing is how large a ring for a path check is, in bytes.
func (c *core) checkRing() int {
	if c.rule == byCopy {
		return checkCopied
	}
	return checkLarge
}

// grantForCheck grants the peer its ring, if the stream is a path check's and the peer writes to rings.
func (s *stream) grantForCheck() {
	if s.checks && s.p.rule != byNothing {
		s.wanted()
	}
}

// pushCheck goes on with the path check, as far as it can. It is part of flush, which runs whenever
// something has come, or has completed.
func (p *peer) pushCheck() {
	s := p.checkStream
	if s == nil || p.check != checkRuns || s.closed() {
		return
	}
	wrong := p.takeCheck(s)
	took := s.taken() == p.checkSize(p.rule)
	switch {
	case s.unmapped():
		p.failCheck(fmt.Errorf("%w: %w", ErrUnmapped, p.unmapped))
	case wrong != "":
		p.failCheck(fmt.Errorf("%w: %s from the peer", ErrContents, wrong))
	case s.err != nil:
		p.failCheck(s.err)
	case !p.giveCheck(s) || !took:
	case !s.conn.dialed:
		p.check = checkPassed
		s.shutWrite(false) // which says so
	case s.recv == recvEOF:
		p.check = checkPassed
		p.checked.signal()
		s.close()
	}
}

// taken is how many bytes of the stream were read.
func (s *stream) taken() uint64 { return s.smallRead + s.largeRead }

// takeCheck compares what has come with what is to come, and returns what was wrong.
func (p *peer) takeCheck(s *stream) (wrong string) {
	var b [EagerPayload]byte
	for !s.segs.empty() {
		at, what := s.taken(), "a message"
		if s.segs.front().large {
			what = "a write"
		}
		n, got := s.tryRead(b[:p.eager])
		if n > 0 {
			got = b[:n]
		}
		switch {
		case len(got) == 0: // cannot be: the segments say that the data is there
			return "nothing"
		case !framing.HasPattern(got, p.proofIn, at) || at+uint64(len(got)) > p.checkSize(p.rule):
			return what
		case n == 0:
			s.consumeLarge(len(got))
		}
	}
	return ""
}

// giveCheck sends as much as it can: a frame as long as both sides take, and then writes. It reports whether
// everything has been sent, and has completed.
func (p *peer) giveCheck(s *stream) (done bool) {
	for size := p.checkSize(p.c.rule); s.sndNxt < size; {
		at, left := s.sndNxt, int(size-s.sndNxt)
		frame := p.eager - int(at) // more than 0 if it is not sent yet
		if frame <= 0 {
			frame = left
		}
		switch {
		case frame <= p.eager:
			var b [EagerPayload]byte
			framing.FillPattern(b[:frame], p.proofOut, at)
			s.writeFrames(b[:frame])
		case p.c.rule == byCopy:
			if w := s.prepareCopy(left); w.mem != nil {
				framing.FillPattern(w.mem, p.proofOut, at)
				s.commitCopy(&w)
				return false // which has flushed
			}
		default:
			if src := s.prepareLarge(left); src.mem != nil {
				framing.FillPattern(src.mem, p.proofOut, at)
				s.post(src)
			}
		}
		if s.sndNxt == at {
			if s.holds() && p.c.stage.Free() == 0 {
				p.awaitStage()
			}
			return false
		}
	}
	return s.writing == 0
}

// failCheck ends the path check with err. A listening side tells the other one why.
func (p *peer) failCheck(err error) {
	p.check, p.checkErr = checkFailed, err
	p.checked.signal()
	s := p.checkStream
	if s == nil || s.conn.dialed || s.gone() {
		return
	}
	s.shutRead() // what still comes is not kept
	switch {
	case errors.Is(err, ErrUnmapped):
		p.reset(s.id, framing.ResetUnmapped)
	case errors.Is(err, ErrContents):
		p.reset(s.id, framing.ResetContents)
	}
}

// endCheck notes that both sides are up: all that the path check sent has arrived.
func (p *peer) endCheck() {
	if p.err != nil {
		return
	}
	p.cfg.Unproven = false
	if p.check == checkNone { // as in tests that make none
		p.check = checkPassed
	}
	if s := p.checkStream; s != nil && !s.closed() {
		s.close()
	}
	p.passCheckRing()
}

// checkError is what a Reset frame means to a path check.
func checkError(code framing.ResetCode, opening bool) error {
	switch code {
	case framing.ResetContents:
		return fmt.Errorf("%w: at the peer, of what was sent from here", ErrContents)
	case framing.ResetUnmapped:
		return fmt.Errorf("%w: the peer cannot map memory of this process (may it open its files in /proc: same user, group and capabilities? or is it short of descriptors? see docs/containers.md)", ErrUnmapped)
	}
	if err := resetError(code, opening); errors.Is(err, ErrMemory) {
		return err
	}
	return fmt.Errorf("%w: the peer refuses what it was not sent", ErrContents)
}

// errSelf ends the peers of a SelfCheck.
var errSelf = errors.New("the endpoint has met itself")

// SelfCheck has the endpoint do a path check with itself, for no longer than ctx lasts. It is for
// providers where the first messages of an endpoint take long: later ones then do not.
func (e *Endpoint) SelfCheck(ctx context.Context) error {
	dials, err := e.NewPeer(PeerConfig{itself: true})
	if err != nil {
		return err
	}
	defer dials.over(errSelf)
	listens, err := e.NewPeer(PeerConfig{Unproven: true, itself: true})
	if err != nil {
		return err
	}
	defer listens.over(errSelf)
	if err := errors.Join(listens.Connect(ctx, dials.Local()), dials.Connect(ctx, listens.Local())); err != nil {
		return err
	}
	return dials.Check(ctx)
}
