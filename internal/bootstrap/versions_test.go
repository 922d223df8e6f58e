package bootstrap

import (
	"cmp"
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/framing"
)

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
