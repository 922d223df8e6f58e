package load

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/bench/internal/workload"
)

// feed passes all of stream to a checker, n bytes at a time.
func feed(c checker, stream []byte, n int) error {
	for len(stream) > 0 {
		k := min(n, len(stream))
		if err := c.check(stream[:k]); err != nil {
			return err
		}
		stream = stream[k:]
	}
	return nil
}

// stamped returns messages with stamps. The last one ends a run.
func stamped(t *testing.T, messages, size int) (stream []byte, distance int) {
	t.Helper()
	distance, err := workload.Stride(size)
	require.NoError(t, err)
	s := stamper{stride: distance}
	for i := range messages {
		message := make([]byte, size)
		s.stamp(message, i == messages-1)
		stream = append(stream, message...)
	}
	return stream, distance
}

func TestStampsAreFoundInPiecesOfAnyLength(t *testing.T) {
	for _, size := range []int{8, 64, 4096, 12288} {
		stream, distance := stamped(t, 3, size)
		for _, n := range []int{1, 3, 7, 8, 9, 4095, 4096, 4097, len(stream)} {
			s := &stamps{stride: distance}
			require.NoError(t, feed(s, stream[:len(stream)-1], n), "%d bytes in pieces of %d", size, n)
			assert.False(t, s.ended(), "a byte is missing")
			require.NoError(t, feed(s, stream[len(stream)-1:], n))
			assert.True(t, s.ended())
			assert.EqualValues(t, len(stream)/distance, s.next)
		}
	}
}

func TestStampsDetectWhatIsNotInItsPlace(t *testing.T) {
	stream, distance := stamped(t, 4, 8192)
	for name, wrong := range map[string][]byte{
		"lost":     append(append([]byte{}, stream[:4096]...), stream[8192:]...),
		"repeated": append(append([]byte{}, stream[:8192]...), stream[4096:]...),
		"shifted":  stream[1:],
	} {
		for _, n := range []int{5, 4096, len(wrong)} {
			assert.ErrorIs(t, feed(&stamps{stride: distance}, wrong, n), errCorrupt, name)
		}
	}
}

func TestMarksEndARunAtItsLastByte(t *testing.T) {
	const size = 10
	stream := make([]byte, 5*size)
	for i := range stream {
		stream[i] = lastMark // has no meaning except at the start of a message
	}
	for i := range 4 {
		stream[i*size] = 0
	}
	for _, n := range []int{1, 3, 10, 11, len(stream)} {
		m := &marks{size: size}
		for range 2 { // one run after the other
			require.NoError(t, feed(m, stream[:len(stream)-1], n))
			assert.False(t, m.ended())
			require.NoError(t, feed(m, stream[len(stream)-1:], n))
			assert.True(t, m.ended())
		}
	}
}

// serveOn runs the server's side on one end of a pipe and returns the other end.
func serveOn(t *testing.T, handle func(net.Conn) error) (net.Conn, chan error) {
	t.Helper()
	client, server := net.Pipe()
	done := make(chan error, 1)
	go func() {
		defer server.Close()
		done <- handle(server)
	}()
	t.Cleanup(func() { client.Close() })
	return client, done
}

func TestFloodIsConfirmedAndEndsInTime(t *testing.T) {
	c, _ := serveOn(t, func(c net.Conn) error { return sinkStamped(c, 8192) })
	work := flood(c, sendStamped(c, 8192))
	for _, d := range []time.Duration{-time.Second, 20 * time.Millisecond, 20 * time.Millisecond} {
		var h workload.Histogram
		start := time.Now()
		require.NoError(t, work(start.Add(d), &h))
		assert.Positive(t, h.Total)
		assert.GreaterOrEqual(t, time.Since(start), d)
	}
}

func TestFloodCountsOnlyWhatIsConfirmed(t *testing.T) {
	c, _ := serveOn(t, func(c net.Conn) error { return sink(c, reading(c), &marks{size: 8}) })
	send := writeMarked(c, 8)
	work := flood(c, func(last bool) (int, error) {
		n, err := send(last)
		return n + 1, err
	})
	var h workload.Histogram
	assert.ErrorContains(t, work(time.Now(), &h), "the server confirmed 8 of 9 bytes")
}

func TestSinkFailsOnWrongBytes(t *testing.T) {
	c, done := serveOn(t, func(c net.Conn) error { return sinkStamped(c, 16) })
	_, err := c.Write([]byte("these are not stamps, not at all"))
	require.NoError(t, err)
	assert.ErrorIs(t, <-done, errCorrupt)
}

func TestServerTellsOfWrongBytesWhenItEnds(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	served := make(chan error, 1)
	go func() { served <- serveConns(l, func(c net.Conn) error { return sinkStamped(c, 16) }) }()
	c, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	defer c.Close()
	_, err = c.Write([]byte("these are not stamps"))
	require.NoError(t, err)
	_, err = c.Read(make([]byte, 1))
	require.Error(t, err, "the server hangs up")
	require.NoError(t, l.Close())
	assert.ErrorIs(t, <-served, errCorrupt)
}
