package simfabric

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/pool"
)

// Memory has to stay registered until every operation on it has been reaped, or the
// endpoint is shut down, whether or not the personality requires registration.
func TestMisuse(t *testing.T) {
	send := func(a, _ *side) fabric.Op { return a.op(fabric.Send, 1, 0, 8) }
	write := func(a, b *side) fabric.Op { return a.write(b, fabric.Write, 2, 0, 8) }
	closed := "region of 65536 bytes closed under operation "
	for name, tt := range map[string]struct {
		op       func(a, b *side) fabric.Op
		weak     bool // completes when it is posted; that completion has to be reaped, too
		death    Death
		reap     bool
		shutdown bool
		want     string
	}{
		"nothing posted":      {},
		"send under way":      {op: send, want: closed + "1 of kind 1"},
		"write under way":     {op: write, want: closed + "2 of kind 4"},
		"write complete":      {op: write, weak: true, want: closed + "2 of kind 4"},
		"write reaped":        {op: write, reap: true},
		"write shut down":     {op: write, shutdown: true},
		"to a silent peer":    {op: write, death: DeathSilent, reap: true, want: closed + "2 of kind 4"},
		"canceled and reaped": {op: write, death: DeathError, reap: true},
		"receive posted": {
			op:   func(a, _ *side) fabric.Op { return a.op(fabric.Recv, 3, 0, 8) },
			want: closed + "3 of kind 3",
		},
		"inject": {op: func(a, _ *side) fabric.Op { return a.op(fabric.Inject, 0, 0, 8) }},
		"not registered": {
			op: func(a, _ *side) fabric.Op {
				return fabric.Op{Kind: fabric.Send, To: a.to, Buf: make([]byte, 8)}
			},
			reap: true,
			want: "operation of kind 1 on 8 bytes that are not registered",
		},
	} {
		for _, late := range []bool{false, true} { // the peer dies before or after the post
			t.Run(name, func(t *testing.T) {
				p := Personality{InjectSize: 8, WeakCompletion: tt.weak}
				n, a, b := pair(t, Config{Delay: 5, Personality: p})
				b.post(b.op(fabric.Recv, 0, 0, 8))
				if tt.death != 0 && !late {
					n.Kill(b, tt.death)
				}
				if tt.op != nil {
					a.post(tt.op(a, b))
				}
				if tt.death != 0 && late {
					n.Kill(b, tt.death)
				}
				if tt.reap {
					a.poll(20)
				}
				if tt.shutdown {
					require.NoError(t, a.Shutdown())
				}
				require.NoError(t, a.local.Deregister())
				misuse, _, _ := strings.Cut(n.Stats().Misuse, "\n")
				assert.Equal(t, tt.want, misuse)
			})
		}
	}
}

// If regions are bound to the endpoint, they have to be closed first. Memory is in
// use until Close, even after Shutdown.
func TestEndpointRegions(t *testing.T) {
	for _, early := range []bool{false, true} {
		n, a, b := pair(t, Config{Personality: Personality{EndpointMR: true}})
		b.post(b.op(fabric.Recv, 3, 0, 8))
		require.NoError(t, b.Shutdown())
		a.post(a.op(fabric.Send, 1, 0, 8))
		assert.Len(t, b.poll(2), 1, "it goes on")
		b.post(b.op(fabric.Recv, 3, 0, 8))
		for _, slab := range []*pool.Slab{b.local, b.landing} {
			require.ErrorIs(t, b.Close(), ErrBusy)
			require.NoError(t, slab.Deregister())
			if early {
				require.NoError(t, slab.Close())
			}
		}
		require.NoError(t, b.Close())
		misuse, _, _ := strings.Cut(n.Stats().Misuse, "\n")
		want := ""
		if early {
			want = "memory of operation 3 of kind 3 unmapped before Close"
		}
		assert.Equal(t, want, misuse)
	}
}

// Inserting an address takes time, but does not hold up other calls.
func TestInsertDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, a, b := pair(t, Config{Personality: Personality{InsertDelay: time.Hour}})
		start, busy := time.Now(), make(chan time.Time)
		go func() {
			_, err := a.Insert(b.Name())
			assert.NoError(t, err)
			busy <- time.Now()
		}()
		synctest.Wait()
		b.post(b.op(fabric.Recv, 3, 0, 8))
		a.post(a.op(fabric.Send, 1, 0, 8))
		assert.Len(t, b.poll(2), 1)
		assert.Zero(t, time.Since(start))
		assert.Equal(t, start.Add(time.Hour), <-busy)
		assert.Zero(t, n.Stats().InFlight)
	})
}
