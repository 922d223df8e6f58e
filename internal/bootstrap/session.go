package bootstrap

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed202c38ff/fabricnet/framing"
)

// sendTimeout bounds the write of one signal. Signals fill a socket's buffer
// only if the peer has stopped reading, and a goodbye must not hold up the
// goroutine that says it for long.
const sendTimeout = 2 * time.Second

// Handler hears what happens to a Session. Its methods are called by the
// session's goroutines: each one at a time, but both at once.
type Handler interface {
	// Doorbell: the peer has posted something and found this side asleep. It
	// must not call Close.
	Doorbell()
	// Heartbeat: the peer lives.
	Heartbeat()
	// Ended: the session is over, and its connection closed. It is called
	// exactly once, and a Doorbell may still be going on. err wraps ErrGoodbye,
	// ErrHeartbeat, ErrMalformed, net.ErrClosed after Close, or is what the
	// connection failed with.
	Ended(err error)
}

// Stats counts what a session sent and received since the handshake.
type Stats struct {
	Sent, Received uint64 // bytes of signals, without what TLS adds
}

// Session is a control connection after its handshake. All methods may be
// called by any goroutine.
type Session struct {
	nc   net.Conn // signals go here: raw, or TLS over it
	raw  net.Conn
	cfg  Config
	peer Peer
	page *Page

	dialing bool // the listening side may have rejected this one before it heard of the Confirm

	sent, received atomic.Uint64
	live           liveness

	out sync.Mutex // one signal at a time; held while it is written, and taken before mu

	mu        sync.Mutex // held for short times only; guards what follows
	cause     error      // why the session ends, set once, before nc is closed
	leaving   error      // why it is about to, set once, before the goodbye
	rejection error      // see Rejection
	started   bool
	ending    bool          // the reader needs nobody any more: Ended is next
	done      chan struct{} // closed when the reader has returned
	deaf      chan struct{} // closed when nobody listens to the doorbell any more; made by Start
	freed     sync.Once
}

func newSession(hs *handshake, page *Page) *Session {
	remote := hs.remote // not to keep all of hs
	s := &Session{nc: hs.nc, raw: hs.raw, cfg: hs.cfg, peer: hs.peer, page: page, dialing: hs.readied, done: make(chan struct{})}
	s.peer.Hello = &remote
	every := s.cfg.Heartbeat
	if silence := time.Duration(remote.Silence) * time.Millisecond; silence > 0 {
		every = min(every, max(silence/3, minHeartbeat))
	}
	s.live.init(every, &s.cfg)
	s.live.turn = s.turn
	return s
}

// Page is the page of sleeping flags, nil if the provider needs none. It is
// unmapped by Close.
func (s *Session) Page() *Page { return s.page }

// Remote is the peer's hello. It must not be changed.
func (s *Session) Remote() *framing.Hello { return s.peer.Hello }

// Peer is what the handshake has found out about the peer, and agreed on with it.
func (s *Session) Peer() Peer { return s.peer }

// LocalAddr is the control connection's local address.
func (s *Session) LocalAddr() net.Addr { return s.nc.LocalAddr() }

// RemoteAddr is the control connection's remote address.
func (s *Session) RemoteAddr() net.Addr { return s.nc.RemoteAddr() }

// TLSState is the state of the connection's TLS after the handshake, and whether it has any.
func (s *Session) TLSState() (tls.ConnectionState, bool) {
	if s.peer.TLS == nil {
		return tls.ConnectionState{}, false
	}
	return *s.peer.TLS, true
}

// Rejection is why the listening side has not let this side in after all, although that
// had confirmed; nil if it has. It is known before Ended is called.
func (s *Session) Rejection() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rejection
}

// Stats returns the counters so far.
func (s *Session) Stats() Stats {
	return Stats{Sent: s.sent.Load(), Received: s.received.Load()}
}

// Start begins liveness: heartbeats, a goroutine that reads, and another that
// hears the doorbell if there is a page. Before, nothing is read and the peer's
// silence goes unnoticed. It is called at most once. After Close it only calls
// h.Ended, from a goroutine of its own.
func (s *Session) Start(h Handler) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.started {
		panic("bootstrap: Session started twice")
	}
	s.started = true
	if s.cause == nil {
		s.live.begin(s.cfg.Schedule.now())
		s.cfg.Schedule.add(&s.live.entry)
	}
	go s.read(h)
	if s.page != nil {
		s.deaf = make(chan struct{})
		go func() {
			defer close(s.deaf)
			s.page.Listen(h.Doorbell)
		}()
	}
}

func (s *Session) read(h Handler) {
	defer close(s.done)
	s.end(s.receive(h))
	s.mu.Lock()
	err := s.cause
	s.ending = true
	s.mu.Unlock()
	h.Ended(err)
}

// receive handles signals until the connection fails or the peer says goodbye. There is no
// deadline: see liveness.
func (s *Session) receive(h Handler) error {
	if err := s.nc.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	var buf [64]byte
	for {
		n, err := s.nc.Read(buf[:])
		s.received.Add(uint64(n))
		if n > 0 {
			s.live.hear(s.cfg.Schedule.now())
		}
		for i, b := range buf[:n] {
			switch framing.Signal(b) {
			case framing.SignalHeartbeat:
				h.Heartbeat()
			case framing.SignalGoodbye:
				s.readRejection(buf[i+1 : n])
				return ErrGoodbye
			default:
				return fmt.Errorf("%w: unknown signal %#02x", ErrMalformed, b)
			}
		}
		switch {
		case errors.Is(err, io.EOF): // the process died
			return fmt.Errorf("its connection ended without a goodbye: %w", io.ErrUnexpectedEOF)
		case err != nil:
			return err
		}
	}
}

// readRejection reads what may follow a goodbye, of which rest has come. See
// handshake.reject.
func (s *Session) readRejection(rest []byte) {
	if !s.dialing {
		return
	}
	_ = s.nc.SetReadDeadline(time.Now().Add(lingerTime))
	hs := &handshake{nc: s.nc, in: rest}
	_, body, err := hs.expect(framing.KindReject)
	if err != nil {
		return // most goodbyes are no more than that
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rejection = hs.rejected(body)
}

// send writes one signal, with s.out held. A failure does not end the session by itself:
// the peer may have said goodbye before it closed, and the reader, which sees the
// connection fail as well, is about to find that.
func (s *Session) send(sig framing.Signal) error {
	if _, err := s.nc.Write([]byte{byte(sig)}); err != nil {
		return err
	}
	s.sent.Add(1)
	return nil
}

// ended is why the session is over, nil while it is not.
func (s *Session) ended() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cause
}

// end notes why the session is over and closes the connection, which ends the reader, and
// who writes. There is no TLS farewell, which might block: the goodbye is one.
func (s *Session) end(cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cause != nil {
		return
	}
	if s.cause = cause; s.leaving != nil {
		s.cause = s.leaving
	}
	s.cfg.Schedule.remove(&s.live.entry)
	s.raw.Close()
}

// leave says goodbye, which takes sendTimeout at most, and ends the session.
func (s *Session) leave(cause error) {
	// For a heartbeat that may be under way, too.
	_ = s.nc.SetWriteDeadline(time.Now().Add(min(sendTimeout, s.cfg.DeadAfter)))
	s.out.Lock()
	defer s.out.Unlock()
	if s.leaves(cause) {
		_ = s.send(framing.SignalGoodbye)
	}
	s.end(cause)
}

// leaves notes why the session is about to end: what the peer does about the goodbye is no
// other reason. It reports false if the session has ended.
func (s *Session) leaves(cause error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leaving == nil {
		s.leaving = cause
	}
	return s.cause == nil
}

// Goodbye ends the session in good order without waiting for anything: Ended
// follows, and the page stays mapped until Close. Later calls do nothing.
func (s *Session) Goodbye() { s.leave(net.ErrClosed) }

// Close says goodbye, closes the connection, waits until Ended has returned, or
// is being called because the session ended by itself, and unmaps the page, whose
// flags nobody may use any more. It may be called from Ended, not from Doorbell, and
// not under a lock that either takes. Later calls do nothing.
func (s *Session) Close() error {
	s.leave(net.ErrClosed)
	s.mu.Lock()
	wait := s.started && !s.ending
	deaf := s.deaf
	s.mu.Unlock()
	if wait {
		<-s.done
	}
	var err error
	s.freed.Do(func() {
		if s.page != nil {
			err = s.page.Close()
			if deaf != nil {
				<-deaf
			}
		}
	})
	return err
}
