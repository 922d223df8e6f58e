package bootstrap

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/seed202c38ff/fabricnet/framing"
)

// sendTimeout bounds the write of one signal. Signals fill a socket's buffer
// only if the peer has stopped reading, and a goodbye must not hold up the
// goroutine that sends it for long.
const sendTimeout = 2 * time.Second

// Handler is told what happens to a Session. Its methods are called by one goroutine of the session,
// except for Sent.
type Handler interface {
	// Sent is how many messages were sent to the peer over the fabric, for a heartbeat. It is called
	// by other goroutines, and must not block.
	Sent() uint32
	// Heartbeat is called when a heartbeat has come, but not for each of those that come
	// faster than they may: the peer is alive, and has sent so many messages over the fabric.
	Heartbeat(sent uint32)
	// Ended is called when the session is over. It is called exactly once. err wraps ErrGoodbye,
	// ErrHeartbeat, ErrMalformed or, after Close or Goodbye, net.ErrClosed; or it is what the
	// connection failed with. If the peer has not ended it, rest is the connection, closed for writing:
	// when there is no more to be read, the peer has closed it, too. Ended must see to it that rest is closed.
	Ended(err error, rest net.Conn)
}

// Stats counts what a session has sent and received since the handshake.
type Stats struct {
	Sent, Received uint64 // bytes of signals, without what TLS adds
}

// Session is a control connection after its handshake. All methods may be called
// concurrently.
type Session struct {
	nc   net.Conn // signals go here: raw, or TLS over it
	raw  net.Conn
	cfg  Config
	peer Peer
	page *Page

	dialing bool // this is the dialling side, which the other may have rejected before it got the Confirm

	sent, received atomic.Uint64
	live           liveness

	out sync.Mutex // held while a signal is written; taken before mu

	mu        sync.Mutex    // held for short times only; guards what follows
	cause     error         // why the session ends, set once, before nc is closed
	leaving   error         // why it is about to end, set once, before the goodbye
	rejection error         // see Rejection
	handler   Handler       // from Start on
	ending    bool          // the reader is about to call Ended, and needs nothing of the session any more
	done      chan struct{} // closed when the reader has returned
	freed     sync.Once
}

func newSession(hs *handshake, page *Page) *Session {
	remote := hs.remote // a copy, so that the session does not keep all of hs
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

// Page returns the page of sleeping flags, nil if the provider needs none. Close unmaps it.
func (s *Session) Page() *Page { return s.page }

// Remote returns the peer's hello, which must not be changed.
func (s *Session) Remote() *framing.Hello { return s.peer.Hello }

// Peer returns what the handshake has found out about the peer, and agreed on with it.
func (s *Session) Peer() Peer { return s.peer }

// LocalAddr returns the control connection's local address.
func (s *Session) LocalAddr() net.Addr { return s.nc.LocalAddr() }

// RemoteAddr returns the control connection's remote address.
func (s *Session) RemoteAddr() net.Addr { return s.nc.RemoteAddr() }

// Rejection returns why the listening side has not let this side in after all, although this
// side had confirmed; nil if it has. It is known before Ended is called.
func (s *Session) Rejection() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rejection
}

// Stats returns the counters so far.
func (s *Session) Stats() Stats {
	return Stats{Sent: s.sent.Load(), Received: s.received.Load()}
}

// Start starts heartbeats and a goroutine that reads. Until then nothing is read, and the peer's silence
// goes unnoticed.
// Start may be called at most once. After Close it only calls h.Ended, from a goroutine of
// its own.
func (s *Session) Start(h Handler) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.handler != nil {
		panic("bootstrap: Session started twice")
	}
	s.handler = h
	if s.cause == nil {
		s.live.begin(s.cfg.Schedule.now())
		s.cfg.Schedule.add(&s.live.entry)
	}
	go s.read(h)
}

func (s *Session) read(h Handler) {
	defer close(s.done)
	over := s.receive(h)
	s.end(over)
	s.mu.Lock()
	err := s.cause
	s.ending = true
	s.mu.Unlock()
	if errors.Is(over, ErrGoodbye) || errors.Is(over, io.ErrUnexpectedEOF) || errors.Is(over, syscall.ECONNRESET) {
		s.raw.Close()
		h.Ended(err, nil)
		return
	}
	h.Ended(err, s.raw)
}

// receive handles signals until the connection fails or the peer says goodbye. There is no
// deadline: see liveness.
func (s *Session) receive(h Handler) error {
	if err := s.awaits(); err != nil {
		return err
	}
	var buf [64]byte
	rest := 0 // of a heartbeat whose end is still to come
	for {
		n, err := s.nc.Read(buf[rest:])
		s.received.Add(uint64(n))
		left, over := s.take(buf[:rest+n], h)
		if over != nil {
			return over
		}
		rest = copy(buf[:], left)
		switch {
		case errors.Is(err, io.EOF): // the process has died
			return fmt.Errorf("its connection ended without a goodbye: %w", io.ErrUnexpectedEOF)
		case err != nil:
			return err
		}
	}
}

// awaits lets the reader wait for signals, unless the session is over: see end.
func (s *Session) awaits() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cause != nil {
		return s.cause
	}
	return s.nc.SetReadDeadline(time.Time{})
}

// take handles the signals that have come, and returns the rest, which is the beginning of a heartbeat.
// Of many heartbeats the last one says all.
func (s *Session) take(signals []byte, h Handler) (rest []byte, err error) {
	var sent uint32
	beats := 0
	for ; len(signals) > 0; signals = signals[framing.HeartbeatSize:] {
		switch framing.Signal(signals[0]) {
		case framing.SignalHeartbeat:
		case framing.SignalGoodbye:
			s.readRejection(signals[1:])
			return nil, ErrGoodbye
		default:
			return nil, fmt.Errorf("%w: unknown signal %#02x", ErrMalformed, signals[0])
		}
		if len(signals) < framing.HeartbeatSize {
			break
		}
		sent, _ = framing.DecodeHeartbeat(signals[:framing.HeartbeatSize])
		beats++
	}
	if beats == 0 {
		return signals, nil
	}
	news, err := s.live.hear(beats, s.cfg.Schedule.now())
	if news {
		h.Heartbeat(sent)
	}
	return signals, err
}

// readRejection reads the Reject that may follow a goodbye, of which rest has come already. See
// handshake.reject.
func (s *Session) readRejection(rest []byte) {
	if !s.dialing {
		return
	}
	_ = s.nc.SetReadDeadline(time.Now().Add(lingerTime))
	hs := &handshake{nc: s.nc, in: rest}
	_, body, err := hs.expect(framing.KindReject)
	if err != nil {
		return // most goodbyes come without one
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rejection = hs.rejected(body)
}

// send writes a signal, with s.out held. A failure does not end the session:
// the peer may have said goodbye before it closed the connection, and the reader, which sees
// the failure as well, will find that goodbye.
func (s *Session) send(signal []byte) {
	if n, err := s.nc.Write(signal); err == nil {
		s.sent.Add(uint64(n))
	}
}

// speaks returns the Handler of a session that has begun and is not over, else nil.
func (s *Session) speaks() Handler {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cause != nil {
		return nil
	}
	return s.handler
}

// end notes why the session is over and ends the reader and any write. The connection stays open for Ended, if it
// can be closed in one direction. end sends no close_notify of TLS, which might block: the goodbye takes its place.
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
	half, ok := s.raw.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil {
		s.raw.Close()
		return
	}
	_ = s.raw.SetDeadline(past)
}

// leave says goodbye, which takes at most sendTimeout, and ends the session.
func (s *Session) leave(cause error) {
	// The deadline is also for a heartbeat that may be under way, which holds s.out.
	_ = s.nc.SetWriteDeadline(time.Now().Add(min(sendTimeout, s.cfg.DeadAfter)))
	s.out.Lock()
	defer s.out.Unlock()
	if s.leaves(cause) {
		s.send([]byte{byte(framing.SignalGoodbye)})
	}
	s.end(cause)
}

// leaves notes why the session is about to end, so that what the peer does about the goodbye
// does not count as the reason. It reports false if the session has ended already.
func (s *Session) leaves(cause error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leaving == nil {
		s.leaving = cause
	}
	return s.cause == nil
}

// Goodbye ends the session in good order without waiting for Ended, which follows. It takes
// at most sendTimeout. The page stays mapped until Close. Later calls do nothing.
func (s *Session) Goodbye() { s.leave(net.ErrClosed) }

// Close says goodbye, closes the connection, and waits until Ended has returned, unless it
// finds that Ended is already being called. It then unmaps the page, whose flags must not be
// used any more. Close may be called from Ended, but not while holding a lock that Ended takes.
// Later calls do nothing.
func (s *Session) Close() error {
	s.leave(net.ErrClosed)
	s.mu.Lock()
	wait := s.handler != nil && !s.ending
	if s.handler == nil { // Ended will close it too late, if ever
		s.raw.Close()
	}
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
