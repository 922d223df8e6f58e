package bootstrap

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/framing"
)

// TestCheckHangs: a provider that swallows everything gets a second if the two sides share another
// one that can still be selected, and all of the handshake's time if not. It is blamed only if the
// listening side answers on the connection meanwhile.
func TestCheckHangs(t *testing.T) {
	const timeout = 10 * time.Second
	for name, tt := range map[string]struct {
		others        []framing.Offer
		passed        bool          // the listening side has passed over them before
		busy          time.Duration // for how long the listening side is
		after, before time.Duration
		silent        bool
	}{
		"another":                      {[]framing.Offer{offer("b")}, false, 0, 2 * patience, timeout / 2, true},
		"another, and a busy listener": {[]framing.Offer{offer("b")}, false, 2 * time.Second, 2*time.Second + patience, timeout / 2, true},
		"another, and a stopped one":   {[]framing.Offer{offer("b")}, false, timeout * 3 / 4, timeout / 2, timeout, false},
		"no other":                     {nil, false, 0, timeout, 2 * timeout, true},
		"none that is shared":          {[]framing.Offer{{Provider: "b", Protocol: 9}}, false, 0, timeout, 2 * timeout, true},
		"one that was passed over":     {[]framing.Offer{offer("b")}, true, 0, timeout, 2 * timeout, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, l := newBinder(append([]framing.Offer{offer("a")}, tt.others...)...), newBinder(offer("a"), offer("b"))
			if tt.passed {
				slices.Reverse(l.hello.Offers)
				l.prepare = map[string]error{"b": errors.New("too many peers")}
			}
			d.hang = map[string]bool{"a": true}
			begin := time.Now()
			dnc, lnc := loopback(t)
			dc := start(t.Context(), Dial, dnc, Config{Timeout: timeout}, d)
			lc := start(t.Context(), Accept, &slowConn{Conn: lnc, till: begin.Add(tt.busy)}, Config{Timeout: timeout}, l)
			dr, lr := <-dc, <-lc
			for _, r := range []result{dr, lr} {
				assert.Equal(t, tt.others != nil && tt.others[0] == offer("b") && !tt.passed, r.err == nil, r.err)
				if r.s != nil {
					assert.Equal(t, "b", r.b.offer.Provider)
					require.NoError(t, r.s.Close())
				}
			}
			refused := d.bindings[0]
			assert.GreaterOrEqual(t, refused.ended.Sub(begin), tt.after)
			assert.Less(t, refused.ended.Sub(begin), tt.before)
			assert.Equal(t, tt.silent, errors.Is(refused.aborted, ErrSilent), refused.aborted)
		})
	}
}

// slowConn is the connection of a process that reads nothing after the dialling
// side's Attach until a given time.
type slowConn struct {
	net.Conn
	till  time.Time
	reads int
}

func (c *slowConn) Read(b []byte) (int, error) {
	if c.reads++; c.reads > 5 { // of which the preamble takes one, and Hello and Attach take two each: length and rest
		time.Sleep(time.Until(c.till))
	}
	return c.Conn.Read(b)
}

// TestUnadmitted: a dialling side that is turned away when it confirms gets a goodbye that says
// why; one that is turned away before that, be it before it is told that the fabric is ready, is rejected.
func TestUnadmitted(t *testing.T) {
	for name, slow := range map[string]bool{"when it confirms": false, "before": true, "before Ready": true} {
		t.Run(name, func(t *testing.T) {
			d, l := newBinder(offer("a")), newBinder(offer("a"))
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			full := fmt.Errorf("%w: 7 are", ErrTooManyPeers)
			l.unadmitted = full
			if slow {
				d.hang = map[string]bool{"a": true}
				d.checked = func() { cancel(ErrClosing) }
			}
			dnc, lnc := loopback(t)
			if name == "before Ready" {
				l.connecting = func() {
					cancel(ErrClosing)
					for err := error(nil); err == nil; { // until the connection takes nothing more
						_, err = lnc.Write(nil)
					}
				}
			}
			dc, lc := start(t.Context(), Dial, dnc, Config{}, d), start(ctx, Accept, lnc, Config{}, l)
			want := map[bool]error{false: ErrTooManyPeers, true: ErrClosing}[slow]
			require.ErrorIs(t, (<-lc).err, want)
			r := <-dc
			if slow {
				require.ErrorIs(t, r.err, want)
				return
			}
			require.NoError(t, r.err)
			h := newRecorder()
			r.s.Start(h)
			require.ErrorIs(t, <-h.ended, ErrGoodbye)
			require.EqualError(t, r.s.Rejection(), full.Error())
			require.NoError(t, r.s.Close())
		})
	}
}

// haltingConn is a connection that, once halts is set, sends the next few bytes, and the rest
// only after on is closed.
type haltingConn struct {
	net.Conn
	halts atomic.Bool
	few   int
	on    chan struct{}
}

func (c *haltingConn) Write(b []byte) (n int, err error) {
	for n < len(b) && err == nil {
		if c.halts.Load() {
			if c.few == 0 {
				<-c.on
			}
			c.few--
		}
		var k int
		k, err = c.Conn.Write(b[n : n+1])
		n += k
	}
	return n, err
}

// countingConn counts the bytes that are read and written.
type countingConn struct {
	net.Conn
	n, written atomic.Int64
}

func (c *countingConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.written.Add(int64(n))
	return n, err
}

func (c *countingConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.n.Add(int64(n))
	return n, err
}

// TestPartOfFarewell: however much of the listening side's farewell has been read when the
// path check is done, the dialing side reads the rest.
func TestPartOfFarewell(t *testing.T) {
	for few := 1; few <= 8; few++ {
		t.Run(fmt.Sprint(few), func(t *testing.T) {
			d, l := newBinder(offer("a")), newBinder(offer("a"))
			dnc, lnc := loopback(t)
			dialer := &countingConn{Conn: dnc}
			listener := &haltingConn{Conn: lnc, few: few, on: make(chan struct{})}
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			d.checked = func() {
				before := dialer.n.Load()
				listener.halts.Store(true)
				cancel(ErrClosing)
				for dialer.n.Load() < before+int64(few) {
					time.Sleep(time.Millisecond)
				}
				time.AfterFunc(20*time.Millisecond, func() { close(listener.on) })
			}
			dc, lc := start(t.Context(), Dial, dialer, Config{}, d), start(ctx, Accept, listener, Config{}, l)
			require.ErrorIs(t, (<-lc).err, ErrClosing)
			require.ErrorIs(t, (<-dc).err, ErrClosing)
		})
	}
}

// TestLateAnswer: if the fabric answers while the listening side is being asked, nothing of
// that exchange is left on the connection for the session.
func TestLateAnswer(t *testing.T) {
	t.Parallel()
	d, l := newBinder(offer("a")), newBinder(offer("a"))
	d.checked = func() { time.Sleep(patience + patience/2) }
	dnc, lnc := loopback(t)
	slow := &slowConn{Conn: lnc, till: time.Now().Add(2*patience + patience/2)}
	dc, lc := start(t.Context(), Dial, dnc, Config{}, d), start(t.Context(), Accept, slow, Config{}, l)
	dr, lr := <-dc, <-lc
	require.NoError(t, dr.err)
	require.NoError(t, lr.err)
	heard := newRecorder()
	dr.s.Start(heard)
	require.NoError(t, lr.s.Close())
	require.ErrorIs(t, heard.wait(t), ErrGoodbye, "and nothing before")
	require.NoError(t, dr.s.Close())
}

// TestCheckEnds: if the listener goes away, or breaks the protocol, while the dialling
// side waits for the fabric's answer, that wait ends at once.
func TestCheckEnds(t *testing.T) {
	for name, tt := range map[string]struct {
		then func(nc net.Conn)
		want error
	}{
		"closed": {func(nc net.Conn) { nc.Close() }, io.ErrUnexpectedEOF},
		"early": {func(nc net.Conn) {
			msg, _ := framing.AppendMessage(nil, framing.KindReady, nil)
			_, _ = nc.Write(msg)
		}, ErrMalformed},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mine, theirs := net.Pipe()
				defer theirs.Close()
				b := newBinder(offer("tcp"), offer("net"))
				b.hang = map[string]bool{"tcp": true}
				begin := time.Now()
				done := start(t.Context(), Dial, mine, Config{}, b)
				go func() {
					script(theirs, true, 3)
					synctest.Wait()
					tt.then(theirs)
				}()
				r := <-done
				require.ErrorIs(t, r.err, tt.want)
				assert.Zero(t, time.Since(begin))
				b.settled(t, nil)
			})
		})
	}
}

// answeredConn is the dialling side's connection. It closes answered when the listening side's
// answer to the question has arrived.
type answeredConn struct {
	net.Conn
	asked    bool
	answered chan struct{}
	once     sync.Once
}

func (c *answeredConn) Write(b []byte) (int, error) {
	question, _ := framing.AppendMessage(nil, framing.KindAlive, nil)
	c.asked = c.asked || string(b) == string(question)
	return c.Conn.Write(b)
}

func (c *answeredConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.asked && err == nil && len(b) < framing.LengthSize { // what follows the length, so the answer is complete
		c.once.Do(func() { close(c.answered) })
	}
	return n, err
}

// TestAnswersMeet: a listening side that resumes after a while answers on the fabric and
// on the connection at the same time. The dialling side does not wait for another answer.
func TestAnswersMeet(t *testing.T) {
	for range 200 {
		synctest.Test(t, func(t *testing.T) {
			d, l := newBinder(offer("a")), newBinder(offer("a"))
			dnc, lnc := net.Pipe()
			c := &answeredConn{Conn: dnc, answered: make(chan struct{})}
			d.checked = func() { <-c.answered }
			begin := time.Now()
			dc, lc := start(t.Context(), Dial, c, Config{}, d), start(t.Context(), Accept, lnc, Config{}, l)
			dr, lr := <-dc, <-lc
			require.NoError(t, dr.err)
			require.NoError(t, lr.err)
			require.Less(t, time.Since(begin), 2*patience)
			require.NoError(t, dr.s.Close())
			require.NoError(t, lr.s.Close())
		})
	}
}

// lateConn is the dialling side's connection. The fabric answers when the question is about
// to be sent, and the question is sent only after the wait for its answer has been ended.
type lateConn struct {
	net.Conn
	asking, ended chan struct{}
	writes        int // Writes up to and including that of the question; with TLS each is a record
	once          sync.Once
}

func (c *lateConn) end(at time.Time) {
	if at.Equal(past) {
		c.once.Do(func() { close(c.ended) })
	}
}

func (c *lateConn) SetDeadline(at time.Time) error {
	defer c.end(at)
	return c.Conn.SetDeadline(at)
}

func (c *lateConn) SetReadDeadline(at time.Time) error {
	defer c.end(at)
	return c.Conn.SetReadDeadline(at)
}

func (c *lateConn) Write(b []byte) (int, error) {
	if c.writes--; c.writes == 0 {
		close(c.asking)
		<-c.ended
	}
	return c.Conn.Write(b)
}

// TestQuestionIsInterrupted: if the fabric answers while the question is being sent, that write is
// not interrupted: after an interrupted write nothing can be written over TLS any more.
func TestQuestionIsInterrupted(t *testing.T) {
	cert, certs := newCertificate(t, "server")
	for name, tt := range map[string]struct {
		dialer, listener *tls.Config
		writes           int
	}{
		"TCP": {nil, nil, 4},
		"TLS": {&tls.Config{RootCAs: certs, ServerName: "server"}, &tls.Config{Certificates: []tls.Certificate{cert}}, 6},
	} {
		t.Run(name, func(t *testing.T) {
			d, l := newBinder(offer("a")), newBinder(offer("a"))
			dnc, lnc := loopback(t)
			c := &lateConn{Conn: dnc, asking: make(chan struct{}), ended: make(chan struct{}), writes: tt.writes}
			d.checked = func() { <-c.asking }
			dr, lr := meet(t, c, lnc, Config{TLS: tt.dialer}, Config{TLS: tt.listener}, d, l)
			require.NoError(t, dr.err)
			require.NoError(t, lr.err)
		})
	}
}

// TestFarewellInsteadOfAnswer: a listening side that was asked whether it is there, and gives up
// instead of answering, has said why, even if the path check has succeeded meanwhile.
func TestFarewellInsteadOfAnswer(t *testing.T) {
	d, l := newBinder(offer("a")), newBinder(offer("a"))
	dnc, lnc := loopback(t)
	dialer := &countingConn{Conn: dnc}
	listener := &haltingConn{Conn: lnc, on: make(chan struct{})}
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	d.checked = func() {
		before := dialer.written.Load()
		listener.halts.Store(true)
		for dialer.written.Load() == before { // the question
			time.Sleep(time.Millisecond)
		}
		cancel(ErrBusy)
		time.AfterFunc(20*time.Millisecond, func() { close(listener.on) })
	}
	dc, lc := start(t.Context(), Dial, dialer, Config{}, d), start(ctx, Accept, listener, Config{}, l)
	require.ErrorIs(t, (<-lc).err, ErrBusy)
	require.ErrorIs(t, (<-dc).err, ErrBusy)
}

// TestReasonWithSeparator: a reason that the dialing side had before it dialed stays one reason on
// both sides, whatever its text.
func TestReasonWithSeparator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, l := newBinder(offer("a")), newBinder(offer("a"))
		d.hello.Unoffered = []string{"x: silent (1s ago; tried again in 4s)"}
		dnc, lnc := net.Pipe()
		dr, lr := meet(t, dnc, lnc, Config{}, Config{}, d, l)
		require.NoError(t, dr.err)
		require.NoError(t, lr.err)
		require.Len(t, dr.b.refused, 1)
		require.Len(t, lr.b.refused, 1)
	})
}

// TestGoodbyeAfterDecline: a listening side that closes while a Decline is on its way
// to it says goodbye first, and the dialling side understands that.
func TestGoodbyeAfterDecline(t *testing.T) {
	for _, others := range [][]framing.Offer{nil, {offer("b")}} {
		offers := append([]framing.Offer{offer("a")}, others...)
		d, l := newBinder(offers...), newBinder(offers...)
		d.check = map[string]error{"a": errFake}
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		dnc, lnc := loopback(t)
		dc := start(t.Context(), Dial, dnc, Config{}, d)
		lc := start(ctx, Accept, &slowConn{Conn: lnc, till: time.Now().Add(500 * time.Millisecond)}, Config{}, l)
		time.AfterFunc(250*time.Millisecond, func() { cancel(ErrClosing) })
		assert.ErrorIs(t, (<-lc).err, ErrClosing)
		assert.ErrorIs(t, (<-dc).err, ErrClosing)
	}
}
