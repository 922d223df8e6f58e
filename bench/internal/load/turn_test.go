package load

import (
	"encoding/binary"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/bench/internal/workload"
)

// turns runs serveTurns on one end of a conn until the test ends. It returns the other end
// and a channel for the result of serveTurns.
func turns(t *testing.T) (net.Conn, <-chan error) {
	client, server := net.Pipe()
	served := make(chan error, 1)
	go func() { served <- serveTurns(server) }()
	t.Cleanup(func() { client.Close(); server.Close() })
	return client, served
}

func TestAConnTakesTurnsOfEveryKind(t *testing.T) {
	c, served := turns(t)
	for _, work := range []workload.Case{workload.Lat64, workload.BW64K, {Mode: workload.ModeBW, Size: 64}, workload.Lat64, {Mode: workload.ModeLat, Size: 1}, workload.BW64K} {
		for _, d := range []time.Duration{0, 5 * time.Millisecond} {
			h := new(workload.Histogram)
			require.NoError(t, takeTurn(c, work.Mode, work.Size)(time.Now().Add(d), h), "%v", work)
			if d > 0 {
				assert.Positive(t, h.Total, "%v", work)
			}
		}
	}
	require.NoError(t, c.Close())
	assert.ErrorIs(t, <-served, io.EOF, "the last turn has ended, too")
}

func TestTurnsThatAreNoneEndTheConn(t *testing.T) {
	for name, head := range map[string]struct {
		kind byte
		size uint32
	}{"kind": {9, 64}, "no size": {kindLat, 0}, "size": {kindBW, MaxSize + 1}} {
		c, served := turns(t)
		_, err := c.Write(binary.BigEndian.AppendUint32([]byte{head.kind}, head.size))
		require.NoError(t, err)
		assert.ErrorContains(t, <-served, "a turn of", name)
	}
}
