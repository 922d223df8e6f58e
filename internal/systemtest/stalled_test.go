package systemtest

import (
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// TestStalledProcess: a process that is suspended while a hundred conns are written to
// leaves the others on the endpoint enough to work with. Over shared memory, nobody shares
// an endpoint with it.
func TestStalledProcess(t *testing.T) {
	for _, provider := range testenv.Shared() {
		t.Run(provider, func(t *testing.T) {
			tr := new(rdmanet.Transport)
			defer func() { assert.NoError(t, tr.Close()) }()
			others, cmd := rdmatest.Clients(t, tr, provider, 5)
			rdmatest.Instruct(t, others[0], rdmatest.Order{Duty: rdmatest.Answer})
			var l load
			for _, c := range others[1:] {
				rdmatest.Instruct(t, c, rdmatest.Order{Duty: rdmatest.Sink})
				l.add(t, c, 64<<10)
			}
			rdmatest.Compare(t, rdmatest.Rounds(3, 15), 0.5, l.rate, func() float64 {
				defer stall(t, tr, provider)()
				for range 10 {
					if !rdmatest.Answers(t, others[0]) {
						t.FailNow()
					}
				}
				return l.rate()
			})
			l.stop(t)
			rdmatest.CloseAll(t, others[0])
			assert.NoError(t, cmd.Wait())
		})
	}
}

// stall suspends another process, and writes as much to it as goes.
func stall(t *testing.T, tr *rdmanet.Transport, provider string) (end func()) {
	t.Helper()
	conns, cmd := rdmatest.Clients(t, tr, provider, 100)
	for _, c := range conns {
		rdmatest.Instruct(t, c, rdmatest.Order{Duty: rdmatest.Sink})
	}
	require.NoError(t, cmd.Process.Signal(syscall.SIGSTOP))
	var writers, full sync.WaitGroup
	for i, c := range conns {
		writers.Go(func() {
			for {
				if _, err := c.Write(rdmatest.Noise()[:500+i%2*(64<<10)]); err != nil {
					return
				}
			}
		})
		full.Go(func() { rdmatest.Standstill(c, 50*time.Millisecond, nil) })
	}
	full.Wait()
	return func() {
		assert.NoError(t, cmd.Process.Kill())
		writers.Wait()
		assert.Error(t, cmd.Wait())
		for _, c := range conns {
			assert.NoError(t, c.SetLinger(0))
			_ = c.Close()
		}
	}
}
