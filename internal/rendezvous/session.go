package rendezvous

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed202c38ff/fabricnet/framing"
)

// sendTimeout bounds the write of one signal. Signals fill a socket's buffer
// only if the peer has stopped reading, and a doorbell must not hold up the
// goroutine that rings it for long.
const sendTimeout = 2 * time.Second

// Handler hears what happens to a Session. Its methods are called by the
// session's goroutine, one at a time.
type Handler interface {
	// Doorbell: the peer has posted something and found this side asleep. It
	// must not block and must not call Close.
	Doorbell()
	// Ended: the session is over, and its connection closed. It is called
	// exactly once. err wraps ErrGoodbye, ErrHeartbeat, ErrMalformed, net.ErrClosed
	// after Close, or is what the connection failed with.
	Ended(err error)
}

// Stats counts what a session sent and received since the handshake.
type Stats struct {
	Sent, Received uint64 // bytes of signals, without what TLS adds
}

// Session is a rendezvous connection after its handshake. All methods may be
// called by any goroutine.
type Session struct {
	nc     net.Conn // signals go here: raw, or TLS over it
	raw    net.Conn
	cfg    Config
	remote framing.Hello
	page   *Page

	sent, received atomic.Uint64

	mu      sync.Mutex // one signal at a time; guards what follows
	until   time.Time  // the write deadline
	out     [1]byte
	beat    *time.Timer
	cause   error // why the session ends, set once, before nc is closed
	started bool
	ending  bool          // the reader needs nobody any more: Ended is next
	done    chan struct{} // closed when the reader has returned
	freed   sync.Once
}

func newSession(hs *handshake, page *Page) *Session {
	return &Session{nc: hs.nc, raw: hs.raw, cfg: hs.cfg, remote: hs.remote, page: page, done: make(chan struct{})}
}

// Page is the page of sleeping flags, nil if the provider needs none. It is
// unmapped by Close.
func (s *Session) Page() *Page { return s.page }

// Remote is the peer's hello. It must not be changed.
func (s *Session) Remote() *framing.Hello { return &s.remote }

// LocalAddr is the rendezvous connection's local address.
func (s *Session) LocalAddr() net.Addr { return s.nc.LocalAddr() }

// RemoteAddr is the rendezvous connection's remote address.
func (s *Session) RemoteAddr() net.Addr { return s.nc.RemoteAddr() }

// TLSState is the state of the connection's TLS, and whether it has any.
func (s *Session) TLSState() (tls.ConnectionState, bool) {
	if c, ok := s.nc.(*tls.Conn); ok {
		return c.ConnectionState(), true
	}
	return tls.ConnectionState{}, false
}

// Stats returns the counters so far.
func (s *Session) Stats() Stats {
	return Stats{Sent: s.sent.Load(), Received: s.received.Load()}
}

// Start begins liveness: heartbeats, and a goroutine that reads. Before, nothing
// is read and the peer's silence goes unnoticed. It is called at most once. After
// Close it only calls h.Ended, from a goroutine of its own.
func (s *Session) Start(h Handler) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.started {
		panic("rendezvous: Session started twice")
	}
	s.started = true
	if s.cause == nil {
		s.beat = time.AfterFunc(s.cfg.Heartbeat, s.heartbeat)
	}
	go s.read(h)
}

func (s *Session) read(h Handler) {
	defer close(s.done)
	err := s.receive(h)
	s.mu.Lock()
	s.end(err)
	err = s.cause
	s.ending = true
	s.mu.Unlock()
	h.Ended(err)
}

// receive handles signals until the connection fails or the peer says goodbye.
func (s *Session) receive(h Handler) error {
	var buf [64]byte
	heard := time.Now()
	var until time.Time // the read deadline
	for quiet := 0; quiet < 2; {
		// In two halves: if this process was stopped for a while, as a debugger or
		// a container's pause does, the first runs out though the peer is well.
		// Moving a deadline costs as much as the rest of a wake-up: one that comes
		// a little early is moved when it has come.
		half := s.cfg.DeadAfter / 2
		if quiet > 0 || until.Sub(heard) < half*3/4 {
			until = time.Now().Add(half)
			if err := s.nc.SetReadDeadline(until); err != nil {
				return err
			}
		}
		n, err := s.nc.Read(buf[:])
		s.received.Add(uint64(n))
		now := time.Now()
		switch {
		case n > 0:
			heard, quiet = now, 0
		case errors.Is(err, os.ErrDeadlineExceeded) && quiet == 0 && now.Sub(heard) < half:
			until = heard.Add(half)
			if err := s.nc.SetReadDeadline(until); err != nil {
				return err
			}
			continue
		default:
			quiet++
		}
		ring := false
		for _, b := range buf[:n] {
			switch framing.Signal(b) {
			case framing.SignalHeartbeat:
			case framing.SignalDoorbell:
				ring = true
			case framing.SignalGoodbye:
				return ErrGoodbye
			default:
				return fmt.Errorf("%w: unknown signal %#02x", ErrMalformed, b)
			}
		}
		if ring { // one wake is enough, however many rang
			h.Doorbell()
		}
		switch {
		case err == nil || errors.Is(err, os.ErrDeadlineExceeded):
		case errors.Is(err, io.EOF): // without a goodbye: the process died
			return io.ErrUnexpectedEOF
		default:
			return err
		}
	}
	return fmt.Errorf("%w for %v", ErrHeartbeat, s.cfg.DeadAfter)
}

// Ring sends the doorbell. It fails once the session has ended.
func (s *Session) Ring() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.send(framing.SignalDoorbell)
}

func (s *Session) heartbeat() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.send(framing.SignalHeartbeat) == nil {
		s.beat.Reset(s.cfg.Heartbeat)
	}
}

// send writes one signal. s.mu is held. A failure does not end the session by
// itself: the peer may have said goodbye before it closed, and the reader, which
// sees the connection fail as well, is about to find that.
func (s *Session) send(sig framing.Signal) error {
	if s.cause != nil {
		return s.cause
	}
	var err error
	limit := min(sendTimeout, s.cfg.DeadAfter)
	if now := time.Now(); s.until.Sub(now) < limit/2 { // not each time: see receive
		s.until = now.Add(limit)
		err = s.nc.SetWriteDeadline(s.until)
	}
	if err == nil {
		s.out[0] = byte(sig)
		_, err = s.nc.Write(s.out[:])
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = fmt.Errorf("%w: it takes no signals", ErrHeartbeat)
		s.end(err)
	}
	if err == nil {
		s.sent.Add(1)
	}
	return err
}

// end notes why the session is over and closes the connection, which ends the
// reader. s.mu is held. There is no TLS farewell, which might block: the goodbye
// is one.
func (s *Session) end(cause error) {
	if s.cause != nil {
		return
	}
	s.cause = cause
	if s.beat != nil {
		s.beat.Stop()
	}
	s.raw.Close()
}

// Goodbye ends the session in good order without waiting for anything: Ended
// follows, and the page stays mapped until Close. Later calls do nothing.
func (s *Session) Goodbye() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leave()
}

// leave says goodbye and closes the connection. s.mu is held.
func (s *Session) leave() {
	if s.cause == nil {
		_ = s.send(framing.SignalGoodbye)
	}
	s.end(net.ErrClosed)
}

// Close says goodbye, closes the connection, waits until Ended has returned, or
// is being called because the session ended by itself, and unmaps the page, which
// nobody may use any more. It may be called from Ended, not from Doorbell, and
// not under a lock that either takes. Later calls do nothing.
func (s *Session) Close() error {
	s.mu.Lock()
	s.leave()
	wait := s.started && !s.ending
	s.mu.Unlock()
	if wait {
		<-s.done
	}
	var err error
	s.freed.Do(func() {
		if s.page != nil {
			err = s.page.Close()
		}
	})
	return err
}
