package systemtest

import (
	"context"
	"fmt"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// span is the time during which something went on.
type span struct{ from, to time.Time }

func (s span) took() time.Duration { return s.to.Sub(s.from) }

// during returns the length of the longest of those trips that overlap with s.
func (s span) during(trips []span) (d time.Duration) {
	for _, t := range trips {
		if t.to.After(s.from) && t.from.Before(s.to) {
			d = max(d, t.took())
		}
	}
	return d
}

// begun returns the length of the longest of those trips that began in s.
func (s span) begun(trips []span) (d time.Duration) {
	for _, t := range trips {
		if t.from.After(s.from) && t.from.Before(s.to) {
			d = max(d, t.took())
		}
	}
	return d
}

func init() { rdmatest.Roles["echo"] = echoes }

// echoes sends back whatever arrives, for ever.
func echoes(provider, _ string) error {
	lc := rdmanet.ListenConfig{Transport: new(rdmanet.Transport), Providers: []string{provider}}
	l, err := lc.Listen(context.Background(), "rdma", testenv.Address())
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			_, _ = io.Copy(rdmatest.OnlyWriter{Writer: c}, rdmatest.OnlyReader{Reader: c})
			_ = c.Close()
		}()
	}
}

// TestLargeBuffersHoldNobodyUp: while 200 MiB are mapped, registered or given back, round
// trips on another conn of the endpoint take no longer than usual. A busy machine delays
// them now and then, but not for the greater part of each call, as the endpoint's lock
// would: during at least one call, no round trip may take half as long as the call. With
// -soak, there is also a bound on the median of how much longer round trips take with a
// call than without. There is none on the longest round trip: in a hundred calls, that is
// one during which a virtual machine did not run at all, with or without a call.
func TestLargeBuffersHoldNobodyUp(t *testing.T) {
	const size = 200 << 20
	rdmatest.Over(t, func(t *testing.T, tr *rdmanet.Transport, providers []string) {
		tr.MemoryLimit = 512 << 20
		_, stdout := rdmatest.Start(t, rdmatest.Process(t, "echo", providers[0], ""))
		addr := rdmatest.Line(t, stdout)
		d := &rdmanet.Dialer{Transport: tr, Providers: providers, Timeout: rdmatest.Patience}
		dial := func() *rdmanet.Conn {
			c, err := d.Dial("rdma", addr)
			require.NoError(t, err)
			return c.(*rdmanet.Conn)
		}
		a, idle := dial(), dial()
		stop, done := make(chan struct{}), make(chan []span, 1)
		go func() {
			var trips []span
			defer func() { done <- trips }()
			for buf := make([]byte, 64); ; {
				select {
				case <-stop:
					return
				default:
				}
				from := time.Now()
				_, err := a.Write(buf)
				if err == nil {
					_, err = io.ReadFull(a, buf)
				}
				if !assert.NoError(t, err) {
					return
				}
				if trip := (span{from, time.Now()}); trip.took() > 100*time.Microsecond {
					trips = append(trips, trip) // not all of them, which would burden the garbage collector
				}
			}
		}()
		var quiet, calls []span // alternating, and equally long
		for range rdmatest.Rounds(20, 100) {
			call := span{from: time.Now()}
			buf, err := idle.AllocBuffer(size)
			require.NoError(t, err)
			buf.Release()
			call.to = time.Now()
			time.Sleep(call.took())
			calls, quiet = append(calls, call), append(quiet, span{call.to, time.Now()})
		}
		close(stop)
		trips := <-done
		var with, without, more, took []time.Duration
		least := 1.0
		for i, c := range calls {
			with, without, took = append(with, c.during(trips)), append(without, quiet[i].begun(trips)), append(took, c.took())
			more = append(more, with[i]-without[i])
			least = min(least, float64(with[i])/float64(c.took()))
		}
		for _, s := range [][]time.Duration{with, without, more, took} {
			slices.Sort(s)
		}
		half, last := len(calls)/2, len(calls)-1
		t.Logf("%d calls of %v (median); the longest round trip of each: %v (median), %v at most; as long without: %v, %v at most; %v more (median)",
			len(calls), took[half], with[half], with[last], without[half], without[last], more[half])
		assert.Less(t, least, 0.5)
		if *rdmatest.Soak { // on a machine with nothing else to do
			assert.Less(t, more[half], 5*time.Millisecond)
		}
		rdmatest.CloseAll(t, a, idle)
	})
}
