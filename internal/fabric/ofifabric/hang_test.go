//go:build linux && cgo

package ofifabric_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/engine"
	"github.com/seed202c38ff/fabricnet/internal/fabric"
)

// shmLink is two endpoints over shared memory with conns between them.
type shmLink struct {
	a, b  *side
	ends  [2]*engine.Endpoint
	peers [2]*engine.Peer
	deaf  atomic.Bool // doorbells of the first are not heard
	conns []*engine.Conn
	far   []*engine.Conn
}

func newShmLink(t *testing.T, conns int) *shmLink {
	t.Helper()
	l := &shmLink{a: open(t, "shm"), b: open(t, "shm")}
	accepted := make(chan *engine.Conn, conns)
	for i, s := range []*side{l.a, l.b} {
		var err error
		l.ends[i], err = engine.NewEndpoint(s.Endpoint, engine.Config{})
		require.NoError(t, err)
		l.peers[i], err = l.ends[i].NewPeer(engine.PeerConfig{Accept: func(c *engine.Conn, _ uint32) framing.ResetCode {
			accepted <- c
			return 0
		}})
		require.NoError(t, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	require.NoError(t, l.peers[0].Connect(ctx, l.peers[1].Local()))
	require.NoError(t, l.peers[1].Connect(ctx, l.peers[0].Local()))
	require.NoError(t, l.peers[0].Check(ctx))
	flags := [2]atomic.Uint32{}
	l.peers[0].Attached(engine.Bell{Own: &flags[0], Peer: &flags[1], Ring: func() { go l.peers[1].Doorbell() }})
	l.peers[1].Attached(engine.Bell{Own: &flags[1], Peer: &flags[0], Ring: func() {
		if !l.deaf.Load() {
			go l.peers[0].Doorbell()
		}
	}})
	for range conns {
		c, err := l.peers[0].Open(ctx, 1)
		require.NoError(t, err)
		l.conns, l.far = append(l.conns, c), append(l.far, <-accepted)
	}
	return l
}

// hang has a Read of each conn wait while one of them hangs in the library, as when the
// peer is stopped with the lock. The reads end when stop is called.
func (l *shmLink) hang(t *testing.T) (stop func()) {
	t.Helper()
	l.deaf.Store(true)
	time.Sleep(20 * time.Millisecond) // nobody polls any more
	_, err := l.far[0].Write([]byte("something to look for"))
	require.NoError(t, err)
	lockRegion(t, l.a)
	var wg sync.WaitGroup
	for _, c := range l.conns {
		wg.Go(func() {
			_, err := c.Read(make([]byte, 1))
			assert.ErrorIs(t, err, syscall.ECONNRESET)
		})
	}
	require.Eventually(t, func() bool { return slices.Max(threadTimes(t)) > 0 }, timeout, time.Millisecond)
	return func() {
		lost := errors.New("stopped")
		l.peers[0].Lost(lost)
		wg.Wait()
		l.peers[1].Lost(lost)
		for _, c := range slices.Concat(l.conns, l.far) {
			require.NoError(t, c.SetLinger(0))
			require.NoError(t, c.Close())
		}
		for _, e := range l.ends {
			require.NoError(t, e.Close())
		}
	}
}
