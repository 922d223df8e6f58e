package bootstrap

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/framing"
)

// TestExpect: from the listening side's order, the dialling side predicts which provider is going to
// be selected. It is right unless the listening side's first choice turns out not to work there.
func TestExpect(t *testing.T) {
	offers := func(names ...string) (list []framing.Offer) {
		for _, name := range names {
			list = append(list, offer(name))
		}
		return list
	}
	for name, tt := range map[string]struct {
		dialer, listener   []framing.Offer
		broken             string
		expected, selected string
	}{
		"the only one":            {offers("tcp"), offers("tcp"), "", "tcp", "tcp"},
		"the listener's first":    {offers("tcp", "shm"), offers("shm", "tcp"), "", "shm", "shm"},
		"the first that is there": {offers("tcp"), offers("shm", "tcp"), "", "tcp", "tcp"},
		"it does not work":        {offers("shm", "tcp"), offers("shm", "tcp"), "shm", "shm", "tcp"},
	} {
		t.Run(name, func(t *testing.T) {
			d, l := newBinder(tt.dialer...), newBinder(tt.listener...)
			l.prepare = map[string]error{tt.broken: errFake}
			dnc, lnc := loopback(t)
			dr, lr := meet(t, dnc, lnc, Config{}, Config{}, d, l)
			require.NoError(t, dr.err)
			require.NoError(t, lr.err)
			assert.Equal(t, []string{tt.expected}, d.expected)
			assert.Empty(t, l.expected)
			assert.Equal(t, tt.selected, dr.b.offer.Provider)
		})
	}
}
