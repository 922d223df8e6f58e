package engine

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"time"
)

const (
	toRead = iota // indices of deadlines
	toWrite
)

func isTimeout(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }

// size returns how many bytes a call is to move: all orders of magnitude are equally likely.
func (m *model) size() int { return 1 + m.rng.IntN(1<<(m.opt.size-m.rng.IntN(1+m.opt.size/2))) }

// cannotWrite reports that trying again is no use.
func (e *modelEnd) cannotWrite() bool { return e.s.writeError() != nil }

// write begins a call that sends.
func (m *model) write(e *modelEnd) {
	if e.writer != nil || e.closer != nil || e.finished && !m.oneIn(20) || e.expired[toWrite] && !m.oneIn(20) {
		return
	}
	left := int(e.toSend - min(e.toSend, e.s.sndNxt))
	if left == 0 && !m.oneIn(20) {
		return
	}
	n := min(m.size(), max(left, 1))
	t := &task{what: "write", e: e}
	e.writer = t
	e.missed[toWrite] = e.expired[toWrite]
	if m.rng.IntN(100) < m.opt.zeroCopy {
		m.start(t, func() { m.sendBuffer(e, n); e.writer = nil })
		return
	}
	if m.oneIn(100) {
		n = 0
	}
	m.start(t, func() {
		pos := e.s.sndNxt
		b := make([]byte, n)
		copy(b, e.bytes(pos, n))
		n, err := e.conn.Write(b)
		clear(b) // it is the caller's again
		m.wrote(e, pos, len(b), n, err)
		e.writer = nil
	})
}

// sendBuffer sends a Buffer: a new one, an old one, or one that was received. Some are only kept for later.
func (m *model) sendBuffer(e *modelEnd, n int) {
	var b *Buffer
	from := e
	if m.oneIn(4) {
		from = pick(m, pick(m, m.conns...).ends[:]...) // a Buffer can come from any conn
		if from.h.frozen() {
			from = e
		}
	}
	switch {
	case len(from.unsent) > 0 && m.oneIn(2):
		b, from.unsent = from.unsent[0], from.unsent[1:]
	case len(from.kept) > 0 && m.oneIn(4):
		m.intact(from, from.kept[0])
		b, from.kept = from.kept[0].b, from.kept[1:]
	case from.conn == nil:
		return
	default:
		var err error
		if b, err = from.conn.AllocBuffer(n); err != nil {
			m.check(from.closed && errors.Is(err, net.ErrClosed) || from.down() || m.opt.tight > 0 && errors.Is(err, ErrMemory),
				"allocating %d bytes: %v", n, err)
			return
		}
		if !m.winding && m.oneIn(4) && !from.closed {
			from.unsent = append(from.unsent, b)
			return
		}
	}
	pos, mem := e.s.sndNxt, b.Bytes()
	copy(mem, e.bytes(pos, len(mem)))
	size := len(mem)
	err := sendBuffer(e.conn, b)
	m.check(b.Bytes() == nil, "a Buffer that was sent has bytes")
	m.check(errors.Is(sendBuffer(e.conn, b), errReleased), "a Buffer can be sent twice")
	b.Release() // does nothing
	m.wrote(e, pos, size, int(e.s.sndNxt-pos), err)
}

// wrote checks the result of a call that sends size bytes from pos on.
func (m *model) wrote(e *modelEnd, pos uint64, size, n int, err error) {
	m.note("wrote", e, size, n)
	if err == nil && size > 0 && e.s.sndNxt == pos {
		m.check(!e.passed && (e.other.closed || e.other.aborted || e.lost()), "%v: a write of %d bytes is dropped", e, size)
		e.passed = true
		return
	}
	m.check(e.s.sndNxt == pos+uint64(n), "%v: a write of %d bytes from %d says %d, and ends at %d", e, size, pos, n, e.s.sndNxt)
	switch {
	case err == nil:
		m.check(n == size, "%v: %d of %d bytes written, and no error", e, n, size)
		m.check(!e.h.c.attr.SameHost || !e.s.pend.active || e.s.pend.spill > 0, "%v: a write of %d bytes waits outside shared memory", e, size)
	case isTimeout(err):
		m.check(e.missed[toWrite], "%v: the deadline to write has not passed", e)
	case errors.Is(err, net.ErrClosed):
		m.check(e.closed, "%v: a conn that is open says %v", e, err)
	case errors.Is(err, syscall.EPIPE):
		m.check(e.finished || e.other.closed || e.other.aborted || e.lost(), "%v: writing: %v", e, err)
	default:
		m.check(errors.Is(err, syscall.ECONNRESET) && (e.other.aborted || e.lost()), "%v: writing: %v", e, err)
	}
}

// read begins a call that receives.
func (m *model) read(e *modelEnd) {
	if e.reader != nil || e.readErr != nil && !m.oneIn(4) || e.closed && !m.oneIn(20) || e.expired[toRead] && !m.oneIn(20) {
		return
	}
	t := &task{what: "read", e: e}
	e.reader = t
	e.missed[toRead] = e.expired[toRead]
	if m.rng.IntN(100) < m.opt.zeroCopy && len(e.kept) < 6 {
		m.start(t, func() {
			b, err := e.conn.RecvBuffer()
			var mem []byte
			if b != nil {
				mem = b.Bytes()
			}
			pos := e.got
			m.received(e, mem, -1, err)
			if b != nil {
				if e.kept = append(e.kept, &keptBuffer{b, pos}); m.oneIn(2) {
					m.release(e)
				}
			}
			e.reader = nil
		})
		return
	}
	n := m.size()
	if m.oneIn(100) {
		n = 0
	} else if m.step >= e.c.until && m.oneIn(2) {
		n = 64 << 10
	}
	m.start(t, func() {
		b := make([]byte, n)
		n, err := e.conn.Read(b)
		m.received(e, b[:n], len(b), err)
		e.reader = nil
	})
}

// received checks the result of a call that asked for up to size bytes, or for any number if size is -1.
func (m *model) received(e *modelEnd, b []byte, size int, err error) {
	m.note("read", e, size, len(b))
	o := e.other
	if !m.check(e.got+uint64(len(b)) <= o.sent(), "%v: %d bytes read from %d on, and %d were written", e, len(b), e.got, o.sent()) {
		return
	}
	m.match(e, e.got, b)
	e.got += uint64(len(b))
	if err == nil {
		m.check(len(b) > 0 || size == 0, "%v: nothing read, and no error", e)
		m.check(e.readErr == nil || len(b) == 0, "%v: bytes after %v", e, e.readErr)
		return
	}
	m.check(len(b) == 0, "%v: bytes and %v", e, err)
	switch {
	case isTimeout(err):
		m.check(e.missed[toRead], "%v: the deadline to read has not passed", e)
		return
	case errors.Is(err, net.ErrClosed):
		m.check(e.closed, "%v: a conn that is open says %v", e, err)
		return
	case err == io.EOF:
		m.check(e.readShut || o.finished && e.got == o.final, "%v: EOF after %d bytes, of %d (finished: %v)", e, e.got, o.sent(), o.finished)
	default:
		m.check(errors.Is(err, syscall.ECONNRESET) && (o.aborted || e.lost()), "%v: reading: %v", e, err)
		if e.readShut { // CloseRead came after this call had looked
			return
		}
	}
	m.check(e.readErr == nil || errors.Is(err, e.readErr), "%v: %v after %v", e, err, e.readErr)
	e.readErr = err
}

// match checks bytes of the stream that e reads, from position pos on.
func (m *model) match(e *modelEnd, pos uint64, b []byte) {
	want := e.other.bytes(pos, len(b))
	if bytes.Equal(b, want) {
		return
	}
	for i := range b {
		if b[i] != want[i] {
			m.failf("%v: byte %d of %d from %d on is %#x, want %#x", e, i, len(b), pos, b[i], want[i])
			return
		}
	}
}

// intact checks that nobody has touched a Buffer.
func (m *model) intact(e *modelEnd, k *keptBuffer) { m.match(e, k.pos, k.b.Bytes()) }

// release gives back one of the Buffers that are kept, in any order.
func (m *model) release(e *modelEnd) {
	if n := len(e.kept); n > 0 {
		m.happened()
		i := m.rng.IntN(n)
		k := e.kept[i]
		e.kept = append(e.kept[:i:i], e.kept[i+1:]...)
		m.intact(e, k)
		m.note("release", e, i, len(k.b.Bytes()))
		k.b.Release()
		k.b.Release() // does nothing
	}
	if n := len(e.unsent); n > 0 && (m.winding || e.closed || m.oneIn(4)) {
		m.happened()
		b := e.unsent[n-1]
		e.unsent = e.unsent[:n-1]
		b.Release()
	}
}

// deadline lets a deadline pass, for a pending call or the next ones. Where Close waits, it may end that wait.
func (m *model) deadline(e *modelEnd) {
	if e.closed {
		if e.closer != nil && e.closer.w != nil && m.oneIn(4) { // it has waited long enough
			e.lingered = true
			e.h.e.enter()
			e.conn.wdl.passed = true
			e.s.wr.signal()
			e.h.e.leave()
		}
		return
	}
	m.happened()
	which := m.rng.IntN(3) // both: 2
	m.note("deadline", e, which, 0)
	set := [...]func(time.Time) error{toRead: e.conn.SetReadDeadline, toWrite: e.conn.SetWriteDeadline, 2: e.conn.SetDeadline}
	err := set[which](time.Unix(1, 0))
	m.check(err == nil, "setting a deadline: %v", err)
	for i := range e.expired {
		if which == i || which == 2 {
			e.expired[i], e.missed[i] = true, true
		}
	}
}

func (m *model) noDeadline(e *modelEnd) {
	if !e.closed && (e.expired[toRead] || e.expired[toWrite]) {
		m.happened()
		m.check(e.conn.SetDeadline(time.Time{}) == nil, "taking back a deadline fails")
		e.expired = [2]bool{}
	}
}
