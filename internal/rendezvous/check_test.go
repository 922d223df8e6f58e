package rendezvous

import (
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
