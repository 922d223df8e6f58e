package rendezvous

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/framing"
)

// pacedBinder calls preparing before it prepares.
type pacedBinder struct {
	*fakeBinder
	preparing func(ctx context.Context, provider string)
}

func (b *pacedBinder) Prepare(ctx context.Context, o framing.Offer, peer *Peer, local netip.Addr, page *Page) (Binding, error) {
	b.preparing(ctx, o.Provider)
	return b.fakeBinder.Prepare(ctx, o, peer, local, page)
}

// TestBothPrepareAtOnce: what either side opens for the provider that both like best takes its
// time once.
func TestBothPrepareAtOnce(t *testing.T) {
	d, l := newBinder(offer("tcp")), newBinder(offer("tcp"))
	here, there := make(chan struct{}), make(chan struct{})
	wait := func(mine, other chan struct{}) func(context.Context, string) {
		return func(context.Context, string) {
			close(mine)
			select {
			case <-other:
			case <-time.After(10 * time.Second):
				t.Error("one waits for the other")
			}
		}
	}
	dnc, lnc := loopback(t)
	type end struct {
		s   *Session
		err error
	}
	accepted := make(chan end, 1)
	go func() {
		s, _, err := Accept(t.Context(), lnc, Config{}, &pacedBinder{l, wait(there, here)})
		accepted <- end{s, err}
	}()
	s, b, err := Dial(t.Context(), dnc, Config{}, &pacedBinder{d, wait(here, there)})
	a := <-accepted
	require.NoError(t, err)
	require.NoError(t, a.err)
	assert.Len(t, d.bindings, 1)
	d.settled(t, b)
	require.NoError(t, s.Close())
	require.NoError(t, a.s.Close())
}

// TestPreparedForNothing: what the dialling side has prepared is undone before it prepares what
// the listening side selects instead.
func TestPreparedForNothing(t *testing.T) {
	d, l := newBinder(offer("shm"), offer("tcp")), newBinder(offer("shm"), offer("tcp"))
	l.prepare = map[string]error{"shm": errFake}
	dnc, lnc := loopback(t)
	dr, lr := meet(t, dnc, lnc, Config{}, Config{}, d, l)
	require.NoError(t, dr.err)
	require.NoError(t, lr.err)
	assert.Equal(t, "tcp", dr.b.offer.Provider)
	require.Len(t, d.bindings, 2)
	assert.ErrorIs(t, d.bindings[0].aborted, errUnselected)
	assert.Equal(t, []string{"shm: " + errFake.Error()}, dr.b.refused)
}

// TestPreparedAndRejected: it is undone, too, where there is nothing to select.
func TestPreparedAndRejected(t *testing.T) {
	d, l := newBinder(offer("tcp")), newBinder(offer("tcp"))
	l.prepare = map[string]error{"tcp": errFake}
	dnc, lnc := loopback(t)
	dr, _ := meet(t, dnc, lnc, Config{}, Config{}, d, l)
	require.Error(t, dr.err)
	require.Len(t, d.bindings, 1)
	assert.ErrorIs(t, d.bindings[0].aborted, errUnselected)
}
