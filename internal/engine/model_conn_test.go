package engine

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"syscall"

	"github.com/seed202c38ff/fabricnet/framing"
)

// modelConn is a conn with both its ends. Side 0 opens it.
type modelConn struct {
	m       *model
	serial  int
	id      uint32 // its stream's
	pair    *pair
	ends    [2]*modelEnd
	until   int               // the step from which on it should end
	refuse  framing.ResetCode // what the listener says
	ctx     *modelContext
	opening bool
	// forgotten: the model is done with it. If Open was given up, the other side may still accept it.
	forgotten bool
}

// modelEnd is one end of a conn, and what can be expected of it.
type modelEnd struct {
	c     *modelConn
	side  int
	other *modelEnd
	h     *host
	conn  *Conn // nil until it is open
	s     *stream

	base   int // where its bytes begin in the pattern
	toSend uint64
	got    uint64 // bytes read, and checked

	writer, reader, closer *task

	finished bool   // it sends nothing more
	final    uint64 // position then
	readShut bool
	closed   bool
	aborted  bool // the other end may learn of it from a reset
	readErr  error

	expired, missed [2]bool   // whether the deadlines to read and to write have passed: now, and at some time since the call began
	cut             bool      // by a reset, or by the peer's failure
	cutAt           uint64    // bytes received until then
	revoked         *outLease // the last lease that was revoked
	revokedAt       uint64
	lingered        bool // Close is told that it has waited long enough
	passed          bool // a write was dropped since the other end is closed
	parts           int  // of its window, when looked at last

	kept   []*keptBuffer // received, and not released
	unsent []*Buffer
}

type keptBuffer struct {
	b   *Buffer
	pos uint64
}

func (e *modelEnd) sent() uint64 {
	if e.s == nil {
		return 0
	}
	return e.s.sndNxt
}

// down reports that the end's peer has failed.
func (e *modelEnd) down() bool { return e.c.pair.peers[e.side].err != nil }

// lost reports that the peer has failed, or a message is missing for good: a close may not be answered.
func (e *modelEnd) lost() bool { return e.down() || e.c.m.opt.losses > 0 && e.c.pair.mayFail }

// discarding reports that nobody reads at this end any more.
func (e *modelEnd) discarding() bool { return e.conn == nil || e.closed || e.s.err != nil || e.down() }

func (e *modelEnd) done() bool {
	return e.conn == nil || e.closed && e.closer == nil && e.writer == nil && e.reader == nil && len(e.kept)+len(e.unsent) == 0
}

func (c *modelConn) done() bool { return !c.opening && c.ends[0].done() && c.ends[1].done() }

// Each direction has the bytes of one long pattern, from a place of its own on: others, or from elsewhere, differ.
const patternPeriod = 65521

var pattern = func() []byte {
	b := make([]byte, patternPeriod+1<<20)
	rng := rand.New(rand.NewPCG(1, 1))
	for i := range patternPeriod {
		b[i] = byte(rng.Uint32())
	}
	for i := patternPeriod; i < len(b); i += copy(b[i:], b[:i]) {
	}
	return b
}()

func (e *modelEnd) bytes(pos uint64, n int) []byte {
	return pattern[(uint64(e.base)+pos)%patternPeriod:][:n]
}

// modelContext is a context that needs no goroutine of its own to end.
type modelContext struct {
	context.Context
	err error
}

func (c *modelContext) Err() error { return c.err }

// openAny opens a conn, if there are to be more.
func (m *model) openAny() {
	if m.winding || m.opened == m.opt.conns || len(m.conns) >= m.opt.alive {
		return
	}
	var up []*pair
	for _, p := range m.pairs {
		if !p.hosts[0].frozen() && (!p.mayFail || m.oneIn(20)) { // a peer that has failed refuses
			up = append(up, p)
		}
	}
	if len(up) > 0 {
		m.open(pick(m, up...))
	}
}

func (m *model) open(p *pair) {
	c := &modelConn{m: m, serial: m.opened, pair: p, opening: true, until: m.step + 200<<m.rng.IntN(5)}
	m.opened++
	if m.oneIn(20) {
		c.refuse = pick(m, framing.ResetRefused, framing.ResetMemory, framing.ResetClosed)
	}
	for side := range c.ends {
		c.ends[side] = &modelEnd{c: c, side: side, h: p.hosts[side], base: m.rng.IntN(patternPeriod), toSend: uint64(1) << m.opt.most}
		if m.oneIn(3) { // it finishes early
			c.ends[side].toSend = uint64(m.rng.IntN(1 << m.rng.IntN(1+m.opt.most)))
		}
	}
	c.ends[0].other, c.ends[1].other = c.ends[1], c.ends[0]
	m.conns = append(m.conns, c)
	c.ctx = &modelContext{Context: context.Background()}
	last := p.peers[0].nextID
	dialer := &Peer{e: p.hosts[0].e, p: p.peers[0]}
	m.start(&task{what: "open", e: c.ends[0]}, func() {
		conn, err := dialer.Open(c.ctx, 1)
		c.opened(conn, err)
	})
	// The Open frame is on its way, or it was sent before something ended the peer.
	if id := p.peers[0].nextID; id != last && (p.peers[0].streams[id] != nil || p.peers[0].err != nil) {
		m.check(p.opening[id] == nil, "conn number %d is used twice", id)
		p.opening[id], c.id = c, id
	}
}

// opened takes the result of Open.
func (c *modelConn) opened(conn *Conn, err error) {
	m, e := c.m, c.ends[0]
	c.opening = false
	m.note("opened", e, 0, 0)
	if err == nil {
		m.check(c.ends[1].conn != nil, "a conn was opened that nobody accepted")
		m.check(conn.Port() == portOf(conn), "a conn has port %d, and %d at the listener", conn.Port(), portOf(conn))
		e.bind(conn)
		e.aborted = false // the conn was there before Open was given up
		return
	}
	switch {
	case errors.Is(err, context.Canceled):
		m.check(e.aborted, "opening: %v", err)
	case e.down():
		// Any error will do: something ended the peer.
	case errors.Is(err, ErrMemory):
		m.check(m.opt.tight > 0 || c.refuse == framing.ResetMemory, "opening: %v", err)
	default:
		m.check(errors.Is(err, syscall.ECONNREFUSED) && c.refuse != 0, "opening: %v", err)
	}
}

// accept is the listener's PeerConfig.Accept.
func (p *pair) accept(conn *Conn, listener uint32) (port uint16, code framing.ResetCode) {
	m, c := p.m, p.opening[conn.stream.id]
	if !m.check(c != nil && c.ends[1].conn == nil && listener == 1, "accepting conn %d: none was opened", conn.stream.id) {
		return 0, framing.ResetRefused
	}
	m.note("accept", c.ends[1], int(c.refuse), 0)
	if c.refuse != 0 {
		return 0, c.refuse
	}
	c.ends[1].bind(conn)
	if c.forgotten {
		c.forgotten = false
		m.conns = append(m.conns, c)
	}
	return portOf(conn), 0
}

// portOf is the port that the model's listener gives a conn.
func portOf(conn *Conn) uint16 { return 1024 + uint16(conn.stream.id%60000) }

func (e *modelEnd) bind(conn *Conn) {
	e.conn, e.s = conn, conn.stream
	if e.c.m.oneIn(2) {
		conn.linger = 1 << 60 // Close waits until the other side has everything, or as long as the model likes
	}
}

// actEnd does something at one of the ends.
func (m *model) actEnd() {
	if len(m.conns) == 0 {
		return
	}
	i := m.rng.IntN(len(m.conns))
	c := m.conns[i]
	if c.done() {
		c.forgotten = true
		m.conns = without(m.conns, i)
		return
	}
	e := c.ends[m.rng.IntN(2)]
	if e.h.frozen() {
		return
	}
	if m.opt.rude > 0 && m.mischief(e) {
		return
	}
	if e.conn == nil {
		if c.opening && e.side == 0 && m.oneIn(60) {
			c.abandon()
		}
		return
	}
	switch r := m.rng.IntN(100); {
	case r < 40 && (m.step < e.c.until || e.c.manner() != polite && !m.winding):
		m.write(e)
	case r < 80:
		m.read(e)
	case r < 86:
		m.release(e)
	case r < 87 && !m.winding:
		m.deadline(e)
	case r < 89:
		m.noDeadline(e)
	default:
		m.shut(e)
	}
}

// mischief does something while a call is in the middle of a copy, or was woken and has not resumed yet.
func (m *model) mischief(e *modelEnd) bool {
	if e.conn == nil || e.closed || e.closer != nil || m.winding || !m.oneIn(4) {
		return false
	}
	copies := e.writer != nil && e.writer.w == nil && e.h.c.copying > 0
	switch {
	case e.s.writer == writerAwake:
		m.deadline(e)
	case !copies && !e.s.copying:
		return false
	case m.rng.IntN(1000) < m.opt.faults && !e.h.dead:
		m.closeHost(e.h)
	case m.rng.IntN(1000) < m.opt.faults:
		m.hangUp(e.c.pair)
	case m.oneIn(3):
		m.closeRead(e)
	default:
		m.close(e, m.oneIn(2))
	}
	return true
}

// abandon gives up an Open that is under way.
func (c *modelConn) abandon() {
	m, e := c.m, c.ends[0]
	m.note("abandon", e, 0, 0)
	e.aborted = true
	c.ctx.err = context.Canceled
	if s := c.pair.peers[0].streams[c.id]; s != nil { // what the context would do
		e.h.e.mu.Lock()
		defer e.h.e.mu.Unlock()
		s.rd.signal()
	}
}

// How a conn ends.
const (
	polite = iota
	closing
	resetting
	anyhow
)

func (c *modelConn) manner() int {
	return []int{closing, resetting, polite, closing, resetting, anyhow, polite}[c.serial%7]
}

// shut may end the end, or one of its directions: because it is time for that, or at random.
func (m *model) shut(e *modelEnd) {
	if e.closed || e.closer != nil {
		return
	}
	// Conns that end abruptly do so at both ends at about the same time, with everything under way.
	how := e.c.manner()
	abrupt := how != polite && m.step >= e.c.until && (e.s.writing > 0 || m.oneIn(20))
	switch {
	case abrupt && how != anyhow:
		m.close(e, how == resetting)
	case abrupt, m.rng.IntN(200) < m.opt.rude:
		switch r := m.rng.IntN(10); {
		case r < 2:
			m.closeRead(e)
		case r < 4:
			m.closeWrite(e)
		default:
			m.close(e, r < 7)
		}
	case !e.finished && e.writer == nil && (e.sent() >= e.toSend || m.step >= e.c.until || e.cannotWrite()):
		if m.oneIn(8) {
			m.close(e, false)
		} else {
			m.closeWrite(e)
		}
	case e.finished && e.writer == nil && e.reader == nil && e.readErr != nil:
		m.close(e, m.oneIn(10))
	}
}

func (m *model) closeRead(e *modelEnd) {
	m.happened()
	m.note("closeRead", e, 0, 0)
	want := e.s.shutError()
	err := e.conn.CloseRead()
	m.check(errors.Is(err, want), "CloseRead: %v instead of %v", err, want)
	if err == nil {
		e.readShut, e.readErr = true, nil
	}
}

func (m *model) closeWrite(e *modelEnd) {
	m.note("closeWrite", e, int(e.s.sndNxt), 0)
	want := e.s.shutError()
	t := &task{what: "closeWrite", e: e}
	e.closer = t
	t.gate = func() bool { return e.writer == nil }
	m.start(t, func() {
		err := e.conn.CloseWrite()
		e.closer = nil
		m.check(errors.Is(err, want), "CloseWrite: %v instead of %v", err, want)
		m.check(err != nil || e.s.hasLeft(), "%v: CloseWrite returns before everything has left", e)
	})
	e.finish()
}

func (e *modelEnd) finish() {
	if !e.finished {
		e.finished, e.final = true, e.s.sndNxt
	}
}

// close closes the end, with a reset if reset is set.
func (m *model) close(e *modelEnd, reset bool) {
	if reset {
		m.check(e.conn.SetLinger(0) == nil, "SetLinger failed")
		e.aborted = true
	}
	m.note("close", e, int(e.s.sndNxt), 0)
	e.closed = true
	t := &task{what: "close", e: e}
	e.closer = t
	// Close waits for the writer's mutex once it has woken the writer.
	t.gate = func() bool { return e.writer == nil }
	m.start(t, func() {
		err := e.conn.Close()
		e.closer = nil
		m.closeDone(e, err)
	})
	e.finish()
}

// closeDone checks that after Close everything has left, and that the other side has it if Close waits for that.
func (m *model) closeDone(e *modelEnd, err error) {
	m.note("closed", e, 0, 0)
	switch o := e.other; {
	case errors.Is(err, syscall.ECONNRESET):
		m.check(!e.aborted && e.lost(), "closing %v: %v", e, err)
	case err != nil:
		m.check(e.lingered && isTimeout(err), "closing %v: %v", e, err)
	case e.conn.linger == 0 && e.h.c.attr.SameHost:
		m.check(e.s.hasLeft(), "%v: Close returns before everything has left", e)
	case !e.aborted && !e.down() && !o.discarding() && e.finished:
		m.check(o.s.rcvNxt == e.final, "%v was closed at %d, and the other side has %d bytes", e, e.final, o.s.rcvNxt)
	}
	m.check(errors.Is(e.conn.Close(), net.ErrClosed), "a second Close succeeds")
	m.check(errors.Is(e.conn.CloseWrite(), net.ErrClosed), "CloseWrite after Close succeeds")
	m.check(errors.Is(e.conn.CloseRead(), net.ErrClosed), "CloseRead after Close succeeds")
}
