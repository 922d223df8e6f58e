package rdmanet

import (
	"context"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// unheard is a peer from which nothing has arrived.
type unheard struct{}

func (unheard) Heard() bool { return false }

// TestCrowdedAdmission: of many connections that arrive at once, a few begin, then more, until no
// place is left. One that makes no progress is told to come again when its time is over, to make
// room. It has more time if its host already has a peer.
func TestCrowdedAdmission(t *testing.T) {
	const come = maxUnproven + 6
	host := netip.MustParsePrefix("192.0.2.1/32")
	for name, tt := range map[string]struct {
		peers int // that the host already has
		stay  time.Duration
	}{
		"nobody knows the host":  {0, provingTime},
		"a peer of it is inside": {1, heardTime},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newAdmission(come+1, 99, 99)
				var placed, sent atomic.Int32
				enter := func() (*newcomer, context.Context) {
					ctx, cancel := context.WithCancelCause(t.Context())
					n, err := a.enter(t.Context(), cancel, host)
					require.NoError(t, err)
					return n, ctx
				}
				for range tt.peers {
					n, ctx := enter()
					require.NoError(t, a.place(ctx, n))
					a.proves(n, unheard{})
					require.NoError(t, a.admit(n))
				}
				for range come {
					n, ctx := enter()
					go func() { // the handshake
						defer a.leave(n)
						if a.place(ctx, n) == nil {
							placed.Add(1)
							a.proves(n, unheard{})
						}
						<-ctx.Done()
						if t.Context().Err() == nil {
							assert.ErrorIs(t, context.Cause(ctx), ErrBusy)
							sent.Add(1)
						}
					}()
				}
				for i := range int32(maxUnproven / maxBeginning) {
					synctest.Wait()
					assert.Equal(t, (i+1)*maxBeginning, placed.Load())
					time.Sleep(beginningTime)
				}
				time.Sleep(tt.stay - maxUnproven/maxBeginning*beginningTime - time.Millisecond)
				synctest.Wait()
				assert.Zero(t, sent.Load(), "they have their time")
				assert.Equal(t, int32(maxUnproven), placed.Load())
				time.Sleep(time.Millisecond)
				synctest.Wait()
				assert.Equal(t, int32(come-maxUnproven), sent.Load(), "as many go as wait")
				assert.Equal(t, int32(come), placed.Load())
			})
		})
	}
}
