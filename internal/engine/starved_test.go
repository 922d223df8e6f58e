package engine

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
)

// TestNotStarvedOnSlowPath: on a thin path small writes wait for slots for longer than DeadAfter,
// since these come once large ones before them have landed. Nobody is ended for that.
func TestNotStarvedOnSlowPath(t *testing.T) {
	for _, tt := range []struct {
		name string
		dead time.Duration
		rate int64
	}{
		{"1s, 400 KiB/s", time.Second, 400 << 10},
		{"100ms, 2 MiB/s", 100 * time.Millisecond, 2 << 20},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var ends []*thinPath
				l, err := newLinkOf(simfabric.Config{Seed: 1, Personality: simfabric.TCP()}, Config{Spin: -1, DeadAfter: tt.dead}, func(e fabric.Endpoint) fabric.Endpoint {
					ends = append(ends, &thinPath{Endpoint: e})
					return ends[len(ends)-1]
				})
				require.NoError(t, err)
				var all sync.WaitGroup
				read := func(s *Conn) {
					all.Go(func() {
						b := make([]byte, 1<<20)
						for {
							if _, err := s.Read(b); err != nil {
								return
							}
						}
					})
				}
				c, s := l.dial(t)
				read(s)
				ends[0].rate.Store(8 << 20)
				for range 16 {
					c, s := l.dial(t)
					read(s)
					all.Go(func() {
						b := make([]byte, 1<<20)
						for {
							if _, err := c.Write(b); err != nil {
								return
							}
						}
					})
				}
				time.Sleep(time.Second)
				ends[0].rate.Store(tt.rate)
				all.Go(func() {
					for {
						if _, err := c.Write(make([]byte, 100)); err != nil {
							return
						}
						time.Sleep(50 * time.Millisecond)
					}
				})
				for i := range 300 {
					time.Sleep(200 * time.Millisecond)
					if i%2 == 0 {
						l.a.Heartbeat(true)
						l.b.Heartbeat(true)
					}
				}
				for _, p := range []*Peer{l.a, l.b} {
					p.e.mu.Lock()
					assert.NoError(t, p.p.err)
					p.e.mu.Unlock()
				}
				ends[0].rate.Store(0)
				l.a.Lost(errGoodbye)
				l.b.Lost(errGoodbye)
				all.Wait()
				require.NoError(t, l.ea.Close())
				require.NoError(t, l.eb.Close())
			})
		})
	}
}
