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

// unheard is a peer of which nothing has come.
type unheard struct{}

func (unheard) Heard() bool { return false }

// TestCrowdedAdmission: of many that come at once a few begin, then more, until there are
// no places left. Who has got nowhere makes room when its time is over, and is told to come
// again; on a host of which a peer is known that is later.
func TestCrowdedAdmission(t *testing.T) {
	const come = maxUnproven + 6
	host := netip.MustParsePrefix("192.0.2.1/32")
	for name, tt := range map[string]struct {
		peers int // of the host, that are in already
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
