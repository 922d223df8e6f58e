package rendezvous

import (
	"crypto/tls"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/framing"
)

// answeredConn is the dialling side's connection. It tells when the listening side's
// answer to a question has come.
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
	if c.asked && err == nil && len(b) < framing.LengthSize { // what follows the length: it is whole
		c.once.Do(func() { close(c.answered) })
	}
	return n, err
}

// TestAnswersMeet: a listening side that goes on after a while answers on the fabric and
// on the connection at once. The dialling side does not wait for another answer.
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
// to be sent, and it is sent only after the wait for its answer was ended.
type lateConn struct {
	net.Conn
	asking, ended chan struct{}
	writes        int // of a TLS record, the last of which are Attach, the question and Confirm
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

// TestQuestionIsInterrupted: the fabric answers while the question is sent. A write that
// was ended half way would be the last one over TLS.
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

// TestReasonWithSeparator: a reason that this side had before it dialed is one reason on
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
