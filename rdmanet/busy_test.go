package rdmanet_test

import (
	"context"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// busyListener is a listener that tells some connections to come again later.
type busyListener struct {
	net.Listener
	sends atomic.Int32 // how many more
	came  chan time.Time
}

func (b *busyListener) Accept() (net.Conn, error) {
	for {
		nc, err := b.Listener.Accept()
		if err != nil {
			return nil, err
		}
		b.came <- time.Now()
		if b.sends.Add(-1) < 0 {
			return nc, nil
		}
		go sendAway(nc)
	}
}

func sendAway(nc net.Conn) {
	defer nc.Close()
	reject, err := framing.AppendMessage(nil, framing.KindReject, &framing.Reject{Code: framing.RejectBusy, Text: "for a test"})
	if err == nil {
		_, _ = nc.Write(append((&framing.Preamble{Version: framing.Version}).Append(nil), reject...))
		_, _ = io.Copy(io.Discard, nc)
	}
}

// TestBusyListener: a dialer that is sent away comes again, less and less often, until its time is over.
func TestBusyListener(t *testing.T) {
	for name, tt := range map[string]struct {
		sends   int32
		timeout time.Duration
	}{
		"twice":    {sends: 2, timeout: rdmatest.Patience},
		"for ever": {sends: 1 << 20, timeout: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			tr := simulated(t, simfabric.TCP())
			tcp, err := net.Listen("tcp", testenv.Address())
			require.NoError(t, err)
			b := &busyListener{Listener: tcp, came: make(chan time.Time, 100)}
			b.sends.Store(tt.sends)
			l, err := (&rdmanet.ListenConfig{Transport: tr}).ListenOn(b)
			require.NoError(t, err)
			defer l.Close()
			start := time.Now()
			c, err := (&rdmanet.Dialer{Transport: tr, Timeout: tt.timeout}).Dial("rdma", l.Addr().String())
			if tt.timeout < rdmatest.Patience {
				require.ErrorIs(t, err, context.DeadlineExceeded) // and ErrBusy, unless the deadline passes during another try
				assert.Less(t, time.Since(start), 2*tt.timeout)
				assert.Greater(t, len(b.came), 2)
				assert.Less(t, len(b.came), 12)
				return
			}
			require.NoError(t, err)
			rdmatest.CloseAll(t, c, rdmatest.Accept(t, l.(*rdmanet.Listener)))
			require.Len(t, b.came, int(tt.sends)+1)
			first, second, third := <-b.came, <-b.came, <-b.came
			assert.GreaterOrEqual(t, second.Sub(first), 25*time.Millisecond)
			assert.GreaterOrEqual(t, third.Sub(second), 50*time.Millisecond)
		})
	}
}
