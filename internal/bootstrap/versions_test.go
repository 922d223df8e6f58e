package bootstrap

import (
	"cmp"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/framing"
)

// TestVersions: builds of different age use the newest version that both know, whichever of them
// dials, and tell it to the layer above before that prepares anything.
func TestVersions(t *testing.T) {
	for _, tt := range []struct {
		dialer, listener [2]uint8
		want             uint8
		text             string
	}{
		{dialer: [2]uint8{1, 2}, listener: [2]uint8{1, 1}, want: 1},
		{dialer: [2]uint8{1, 1}, listener: [2]uint8{1, 2}, want: 1},
		{dialer: [2]uint8{1, 2}, listener: [2]uint8{2, 3}, want: 2},
		{dialer: [2]uint8{1, 3}, listener: [2]uint8{1, 3}, want: 3},
		{dialer: [2]uint8{2, 2}, listener: [2]uint8{1, 1}, text: "the listener speaks 1 to 1, the dialer 2 to 2"},
		{dialer: [2]uint8{1, 1}, listener: [2]uint8{2, 2}, text: "the listener speaks 2 to 2, the dialer 1 to 1"},
	} {
		t.Run(fmt.Sprint(tt.dialer, tt.listener), func(t *testing.T) {
			d, l := newBinder(offer("tcp")), newBinder(offer("tcp"))
			d.hello.MinVersion, d.hello.MaxVersion, d.hello.Features = tt.dialer[0], tt.dialer[1], 1<<63|6
			l.hello.MinVersion, l.hello.MaxVersion, l.hello.Features = tt.listener[0], tt.listener[1], 1<<62|3
			asked := false
			l.authorised = func(_ context.Context, p *Peer) {
				asked = true
				assert.Equal(t, tt.want, p.Version)
			}
			dnc, lnc := loopback(t)
			dr, lr := meet(t, dnc, lnc, Config{}, Config{}, d, l)
			assert.Equal(t, tt.want != 0, asked)
			for _, r := range []result{dr, lr} {
				if tt.want == 0 {
					require.ErrorIs(t, r.err, ErrVersion)
					assert.ErrorContains(t, r.err, tt.text)
					continue
				}
				require.NoError(t, r.err)
				for _, p := range []Peer{*r.b.peer, r.s.Peer()} {
					assert.Equal(t, tt.want, p.Version)
					assert.EqualValues(t, 2, p.Features, "what both have")
					assert.Nil(t, p.TLS)
					assert.Equal(t, r.s.Remote(), p.Hello)
				}
			}
		})
	}
}

// TestFrameVersions: a peer that would send frames that this side cannot read is refused in the
// handshake.
func TestFrameVersions(t *testing.T) {
	newer := func(m []byte) []byte {
		m[len(m)-1] = framing.FrameVersion + 1
		return m
	}
	hello := message(framing.KindHello, validHello())
	for name, tt := range map[string]struct {
		run  side
		kind framing.Kind
	}{"dial": {Dial, framing.KindSelect}, "accept": {Accept, framing.KindAttach}} {
		t.Run(name, func(t *testing.T) {
			mine, theirs := loopback(t)
			b := newBinder(offer("tcp"))
			done := start(t.Context(), tt.run, mine, Config{}, b)
			_, err := theirs.Write(spoken(hello, message(tt.kind, validAttach(), newer)))
			require.NoError(t, err)
			require.NoError(t, theirs.(interface{ CloseWrite() error }).CloseWrite())
			r := <-done
			assert.ErrorIs(t, r.err, ErrVersion)
			assert.NotErrorIs(t, r.err, ErrMalformed)
			assert.ErrorContains(t, r.err, fmt.Sprintf("%d here, %d at the peer", framing.FrameVersion, framing.FrameVersion+1))
			b.settled(t, nil)
		})
	}
}

// TestHostileProviderName: a provider's name with control characters is refused, and does not get
// into the error.
func TestHostileProviderName(t *testing.T) {
	evil := func(m []byte) []byte {
		for i := range m {
			if string(m[i:min(i+3, len(m))]) == "tcp" {
				m[i] = 0x1b
			}
		}
		return m
	}
	for name, run := range map[string]side{"dial": Dial, "accept": Accept} {
		t.Run(name, func(t *testing.T) {
			mine, theirs := loopback(t)
			b := newBinder(offer("tcp"))
			done := start(t.Context(), run, mine, Config{}, b)
			_, err := theirs.Write(spoken(message(framing.KindHello, validHello(), evil)))
			require.NoError(t, err)
			require.NoError(t, theirs.(interface{ CloseWrite() error }).CloseWrite())
			r := <-done
			assert.ErrorIs(t, r.err, ErrMalformed)
			assert.NotContains(t, r.err.Error(), "\x1b")
			b.settled(t, nil)
		})
	}
}

// TestAuthorizeInTime: the context of the call that decides whether a dialer is let in ends with
// the handshake's time, or when the listener closes. That is no refusal, and the dialer is told
// what it was.
func TestAuthorizeInTime(t *testing.T) {
	for name, tt := range map[string]struct {
		limit time.Duration
		cause error // that ends it
		told  error
		text  string
	}{
		"closing":  {0, ErrClosing, ErrClosing, "closing"},
		"time-out": {time.Second, nil, ErrRejected, "handshake timed out: waiting for Authorize"},
	} {
		t.Run(name, func(t *testing.T) {
			dnc, lnc := loopback(t)
			d, l := newBinder(offer("tcp")), newBinder(offer("tcp"))
			ctx, cancel := context.WithCancelCause(t.Context())
			l.authorised = func(ctx context.Context, _ *Peer) {
				if tt.cause != nil {
					cancel(tt.cause)
				}
				<-ctx.Done()
				l.authErr = context.Cause(ctx)
			}
			dc := start(t.Context(), Dial, dnc, Config{}, d)
			lr := <-start(ctx, Accept, lnc, Config{Timeout: tt.limit}, l)
			assert.ErrorIs(t, lr.err, cmp.Or(tt.cause, ErrHandshakeTimeout))
			assert.NotErrorIs(t, lr.err, ErrUnauthorized)
			assert.ErrorContains(t, lr.err, "waiting for Authorize")
			dr := <-dc
			assert.ErrorIs(t, dr.err, tt.told)
			assert.ErrorContains(t, dr.err, tt.text)
			assert.NotErrorIs(t, dr.err, ErrHandshakeTimeout, "its own time is not over")
		})
	}
}
