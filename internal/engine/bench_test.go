package engine

import (
	"fmt"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
)

// onSims runs a benchmark of conns over two simulated fabrics: one with a doorbell, one that can be
// waited on. The results include the cost of the simulation itself (see simfabric's BenchmarkOp).
func onSims(b *testing.B, run func(b *testing.B, l *link, client, server *Conn)) {
	for _, p := range []simfabric.Personality{simfabric.Shm(), simfabric.TCP()} {
		b.Run("sim="+p.Provider, func(b *testing.B) {
			l := newLink(b, simfabric.Config{Seed: 1, Personality: p}, Config{})
			defer l.close(b)
			client, server := l.dial(b)
			b.ReportAllocs()
			run(b, l, client, server)
		})
	}
}

func BenchmarkRoundTrip(b *testing.B) {
	onSims(b, func(b *testing.B, _ *link, client, server *Conn) {
		b.SetBytes(64)
		benchEcho(b, client, server, 64)
	})
}

// benchEcho measures round trips of one conn, and ends it.
func benchEcho(b *testing.B, client, server *Conn, size int) {
	echoed := begin(func() error { return echo(server, size) })
	buf := make([]byte, size)
	require.NoError(b, roundTrip(client, buf)) // it has a ring now, if it needs one
	for b.Loop() {
		if err := roundTrip(client, buf); err != nil {
			b.Fatal(err)
		}
	}
	closeConns(b, client)
	require.NoError(b, <-echoed)
	closeConns(b, server)
}

// BenchmarkOneWay moves data to a reader that is always there. frames/op is the number of frames
// that a write took, not counting credits and RDMA writes. It is below 1 where small writes share a
// frame, or where one frame announces many RDMA writes.
func BenchmarkOneWay(b *testing.B) {
	for _, size := range []int{64, 64 << 10} {
		b.Run(fmt.Sprintf("size=%d", size), func(b *testing.B) {
			onSims(b, func(b *testing.B, l *link, client, server *Conn) {
				drained := begin(func() error { return drain(server, 256<<10) })
				buf := make([]byte, size)
				before := l.ea.Stats()
				b.SetBytes(int64(size))
				for b.Loop() {
					if _, err := client.Write(buf); err != nil {
						b.Fatal(err)
					}
				}
				after := l.ea.Stats()
				frames := after.FramesSent - before.FramesSent - (after.CreditFrames - before.CreditFrames)
				b.ReportMetric(float64(frames)/float64(b.N), "frames/op")
				require.NoError(b, client.CloseWrite())
				require.NoError(b, <-drained)
				closeConns(b, client, server)
			})
		})
	}
}

// roundTrip sends buf and waits for as much to come back.
func roundTrip(c *Conn, buf []byte) error {
	if _, err := c.Write(buf); err != nil {
		return err
	}
	_, err := io.ReadFull(c, buf)
	return err
}

// echo sends messages of size bytes back until the peer closes.
func echo(c *Conn, size int) error {
	for buf := make([]byte, size); ; {
		if _, err := io.ReadFull(c, buf); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		if _, err := c.Write(buf); err != nil {
			return err
		}
	}
}

// drain reads until the peer closes.
func drain(c *Conn, size int) error {
	_, err := io.CopyBuffer(onlyWriter{io.Discard}, onlyReader{c}, make([]byte, size))
	return err
}

// BenchmarkAmong measures a round trip of one conn among idle peers, and among idle conns of its
// own peer. It should cost the same whether there are ten of them or a thousand.
func BenchmarkAmong(b *testing.B) {
	for _, size := range []int{64, 64 << 10} {
		for _, n := range []int{10, 1000} {
			among(b, size, n, 1)
			among(b, size, 1, n)
		}
	}
}

func among(b *testing.B, size, peers, conns int) {
	b.Run(fmt.Sprintf("size=%d/peers=%d/conns=%d", size, peers, conns), func(b *testing.B) {
		s := newStar(b, deepSim(), Config{}, peers)
		defer s.close(b)
		client, server := s.dial(b, peers/2)
		outer, inner := s.dials(b, peers/2, conns-1)
		benchEcho(b, client, server, size)
		closeConns(b, append(outer, inner...)...)
	})
}
