package engine

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/framing"
)

// TestAcceptOvertaken: whatever overtakes the Accept of a stream that was taken, Open waits for the
// port that the Accept brings.
func TestAcceptOvertaken(t *testing.T) {
	for name, tt := range map[string]struct {
		end  func(s *stream)
		left bool // something can be read
	}{
		"nothing":    {func(*stream) {}, true},
		"a Fin":      {func(s *stream) { s.shutWrite(false) }, true},
		"a close":    {(*stream).close, true},
		"a reset":    {func(s *stream) { s.abort() }, false},
		"both kinds": {func(s *stream) { s.close(); s.abort() }, false},
	} {
		t.Run(name, func(t *testing.T) {
			var accepted *Conn
			gone := 0
			a := newSide(t, func(*Conn) {})
			b := newSide(t, func(c *Conn) {
				accepted = c
				c.OnGone(func() { gone++ })
			})
			s, err := a.p.open(7)
			require.NoError(t, err)
			require.NoError(t, deliver(a, b, 0))
			tt.end(accepted.stream)
			for i := b.p.ctl.len() - 1; i >= 0; i-- { // the last one first
				assert.True(t, s.unanswered())
				assert.Zero(t, s.port)
				require.NoError(t, deliver(b, a, i))
			}
			assert.False(t, s.unanswered())
			assert.EqualValues(t, anyPort, s.port)
			assert.Equal(t, tt.left, s.err == nil)
			s.close()
			accepted.stream.close()
			for a.p.ctl.len()+b.p.ctl.len() > 0 {
				if a.p.ctl.len() > 0 {
					require.NoError(t, deliver(a, b, 0))
				} else {
					require.NoError(t, deliver(b, a, 0))
				}
			}
			assert.Equal(t, 1, gone)
		})
	}
}

// TestAcceptWithoutPort: an Accept without a port breaks the protocol.
func TestAcceptWithoutPort(t *testing.T) {
	a := newSide(t, func(*Conn) {})
	s, err := a.p.open(7)
	require.NoError(t, err)
	for _, payload := range [][]byte{nil, {0, 0}, {1, 2, 3}} {
		_, err = a.p.handle(&framing.Header{Type: framing.TypeAccept, Stream: s.id}, payload, 0)
		assert.ErrorIs(t, err, framing.ErrPayload)
		assert.True(t, s.unanswered())
	}
}
