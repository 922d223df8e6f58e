package load

import (
	"net"
	"time"

	"github.com/seed202c38ff/fabricnet/bench/internal/workload"
)

// openIdle opens n conns, each of which has echoed a byte. Their one worker only waits.
func openIdle(dial dialer, n int, m *meter) ([]worker, func() error, error) {
	_, closeAll, err := openStreams(func() (net.Conn, error) {
		c, err := dial()
		if err != nil {
			return nil, err
		}
		if err := echoByte(c); err != nil {
			c.Close()
			return nil, err
		}
		m.firstConn()
		return c, nil
	}, n, func(net.Conn) worker { return nil })
	wait := func(end time.Time, _ *workload.Histogram) error {
		time.Sleep(time.Until(end))
		return nil
	}
	return []worker{wait}, closeAll, err
}

// echoIdle is the server's side of an idle conn.
func echoIdle(c net.Conn, m *meter) error {
	var b [1]byte
	for {
		if _, err := c.Read(b[:]); err != nil {
			return err
		}
		m.firstConn() // before the answer, when there is no second conn yet
		if _, err := c.Write(b[:]); err != nil {
			return err
		}
	}
}
