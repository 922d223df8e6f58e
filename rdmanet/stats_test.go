package rdmanet_test

import (
	"bytes"
	"io"
	"reflect"
	"runtime/trace"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// notLess fails the test and returns false if a counter has fallen. Counters are the unsigned numbers.
func notLess(t *testing.T, old, now reflect.Value, name string) bool {
	ok := true
	switch now.Kind() {
	case reflect.Uint64:
		ok = assert.GreaterOrEqual(t, now.Uint(), old.Uint(), name)
	case reflect.Struct:
		for i := range now.NumField() {
			ok = notLess(t, old.Field(i), now.Field(i), name+"."+now.Type().Field(i).Name) && ok
		}
	case reflect.Map:
		for _, k := range old.MapKeys() {
			v := now.MapIndex(k)
			if !v.IsValid() {
				return assert.Fail(t, "gone", "%s[%v]", name, k)
			}
			ok = notLess(t, old.MapIndex(k), v, name+"["+k.String()+"]") && ok
		}
	}
	return ok
}

// TestTransportBytes: the statistics count all that Write has taken and Read has returned, whichever
// way it went.
func TestTransportBytes(t *testing.T) {
	onEach(t, func(t *testing.T, tr *rdmanet.Transport, providers []string) {
		l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr, Providers: providers})
		c, s := rdmatest.Meet(t, &rdmanet.Dialer{Transport: tr, Providers: providers}, l)
		total := 0
		for _, size := range []int{1, 5000, 300 << 10, 300 << 10} {
			total += size
			sent := make(chan error, 1)
			go func() { _, err := c.Write(make([]byte, size)); sent <- err }()
			_, err := io.ReadFull(s, make([]byte, size))
			require.NoError(t, err)
			require.NoError(t, <-sent)
		}
		p := tr.Stats().Providers[c.Info().Provider]
		assert.EqualValues(t, total, p.BytesSent)
		assert.EqualValues(t, total, p.BytesReceived)
		assert.Equal(t, c.Info().LargeSent, p.RDMABytesSent)
		assert.Equal(t, p.BytesSent, p.Copies.Staged+p.Copies.Mapped)
		assert.Positive(t, p.Polls)
		assert.EqualValues(t, 2, tr.Stats().Opened)
		rdmatest.CloseAll(t, c, s)
		assert.Equal(t, p.BytesSent, tr.Stats().Providers[c.Info().Provider].BytesSent)
	})
}

// TestTrace: an execution trace shows dials and both sides' handshakes.
func TestTrace(t *testing.T) {
	tr := simulated(t, simfabric.TCP())
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr})
	var buf bytes.Buffer
	require.NoError(t, trace.Start(&buf))
	c, s := rdmatest.Meet(t, &rdmanet.Dialer{Transport: tr}, l)
	rdmatest.Eventually(t, func() bool { return tr.Stats().Handshakes == 0 }, "the handshake has ended")
	trace.Stop()
	for _, name := range []string{"rdmanet.Dial", "rdmanet.Dial.handshake", "rdmanet.Accept", "rdmanet.Accept.handshake"} {
		// In a trace, each string comes after its length.
		assert.True(t, bytes.Contains(buf.Bytes(), append([]byte{byte(len(name))}, name...)), name)
	}
	rdmatest.CloseAll(t, c, s)
}
