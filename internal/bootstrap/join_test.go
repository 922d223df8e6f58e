package bootstrap

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/framing"
)

// TestJoin: a handshake ends early if an existing pair is joined to the listener, and otherwise goes
// on as any other.
func TestJoin(t *testing.T) {
	ask, answer := &framing.Join{Peer: 1, Proof: [32]byte{2}}, &framing.Join{Peer: 3, Proof: [32]byte{4}}
	for name, tt := range map[string]struct {
		announced          bool
		ask, answer        *framing.Join
		dialer, listener   error // what Joined and Join return
		joined, asked      bool
		dialErr, acceptErr error
		dialText           string
	}{
		"granted":               {announced: true, ask: ask, answer: answer, joined: true, asked: true},
		"nothing to ask for":    {announced: true},
		"not announced":         {},
		"refused":               {announced: true, ask: ask, asked: true},
		"rejected":              {announced: true, ask: ask, asked: true, listener: ErrTooManyPeers, dialErr: ErrTooManyPeers, acceptErr: ErrTooManyPeers},
		"granted without proof": {announced: true, ask: ask, answer: answer, asked: true, joined: true, dialer: errFake, dialErr: ErrMalformed},
	} {
		t.Run(name, func(t *testing.T) {
			d, l := newBinder(offer("tcp")), newBinder(offer("tcp"))
			d.hello.Joins = tt.announced
			d.ask, d.unjoined, l.answer, l.unjoined = tt.ask, tt.dialer, tt.answer, tt.listener
			dnc, lnc := loopback(t)
			dc, lc := start(t.Context(), Dial, dnc, Config{}, d), start(t.Context(), Accept, lnc, Config{}, l)
			dr, lr := <-dc, <-lc
			require.NotNil(t, d.met)
			assert.Equal(t, l.hello.Process, d.met.Hello.Process)
			if tt.asked {
				assert.Equal(t, ask, l.asked)
			} else {
				assert.Nil(t, l.asked)
			}
			require.ErrorIs(t, dr.err, tt.dialErr)
			require.ErrorIs(t, lr.err, tt.acceptErr)
			if tt.joined {
				assert.Equal(t, answer, d.answered)
			}
			if tt.joined || tt.dialErr != nil {
				assert.Nil(t, dr.s)
				assert.Nil(t, lr.s)
				assert.Nil(t, dr.b)
				assert.Nil(t, lr.b)
				_, err := dnc.Write([]byte{1})
				assert.Error(t, err, "the connection is closed")
				return
			}
			require.NotNil(t, dr.s)
			require.NotNil(t, lr.s)
			assert.NoError(t, dr.s.Close())
			assert.NoError(t, lr.s.Close())
		})
	}
}
