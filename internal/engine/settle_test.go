package engine

import (
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/engine/progress"
)

// TestCloseExpectsTheNextConn: once the listening side of an endpoint with doorbells has closed a conn, it polls for
// the next one, if it has a core to spare, so that the dialling side need not ring. The dialling side does not poll.
func TestCloseExpectsTheNextConn(t *testing.T) {
	for name, procs := range map[string]int{"one core": 1, "all cores": runtime.GOMAXPROCS(0)} {
		t.Run(name, func(t *testing.T) {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
			l := newLink(t, personalities()["shm"], Config{Spin: 2 * time.Millisecond})
			defer l.close(t)
			isArmed := func(e *Endpoint) bool { return strings.HasPrefix(e.poller.String(), "armed") }
			asleep := func() bool { return progress.Spinners() == 0 && isArmed(l.ea) && isArmed(l.eb) }
			// settles reports that closing leaves the queue polled again and again, and not armed.
			settles := func(e *Endpoint, c *Conn) bool {
				comesTrue(t, func() bool { return asleep() && e.poller.Acquire() })
				polls := e.poller.Polls()
				e.poller.Release() // as a Read does
				c.e.poller.Settle(!c.dialed)
				comesTrue(t, asleep)
				return e.poller.Stats().Polls-polls >= 8
			}
			a, b := l.dial(t)
			require.False(t, settles(l.ea, a))
			polls := false
			for i := 0; i < 10 && !polls; i++ { // a timer may have armed the queue before
				polls = settles(l.eb, b)
			}
			require.Equal(t, min(procs, runtime.NumCPU()) > 1, polls)
			closeConns(t, a, b)
		})
	}
}
