package rdmanet_test

import (
	"fmt"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// BenchmarkStream moves data one way, and BenchmarkRoundTrip back and forth. Both do so
// between two Transports of this process.
func BenchmarkStream(b *testing.B) {
	onSizes(b, []int{64, 4 << 10, 64 << 10, 1 << 20}, func(b *testing.B, client, server *rdmanet.Conn, size int) {
		b.SetBytes(int64(size))
		done := make(chan error, 1)
		go func() {
			_, err := io.CopyBuffer(rdmatest.OnlyWriter{Writer: io.Discard}, rdmatest.OnlyReader{Reader: server}, make([]byte, 256<<10))
			done <- err
		}()
		buf := make([]byte, size)
		for b.Loop() {
			_, err := client.Write(buf)
			require.NoError(b, err)
		}
		require.NoError(b, client.CloseWrite())
		require.NoError(b, <-done)
	})
}

func BenchmarkRoundTrip(b *testing.B) {
	onSizes(b, []int{64, 4 << 10, 64 << 10}, func(b *testing.B, client, server *rdmanet.Conn, size int) {
		b.SetBytes(int64(size))
		done := make(chan struct{})
		go func() {
			defer close(done)
			buf := make([]byte, size)
			for {
				if _, err := io.ReadFull(server, buf); err != nil {
					return
				}
				if _, err := server.Write(buf); err != nil {
					return
				}
			}
		}()
		buf := make([]byte, size)
		for b.Loop() {
			_, err := client.Write(buf)
			require.NoError(b, err)
			_, err = io.ReadFull(client, buf)
			require.NoError(b, err)
		}
		require.NoError(b, client.Close())
		<-done
	})
}

func onSizes(b *testing.B, sizes []int, run func(b *testing.B, client, server *rdmanet.Conn, size int)) {
	for _, provider := range rdmatest.Providers {
		for _, size := range sizes {
			b.Run(fmt.Sprintf("provider=%s/size=%d", provider, size), func(b *testing.B) {
				var there, here rdmanet.Transport
				defer func() { require.NoError(b, there.Close()) }()
				defer func() { require.NoError(b, here.Close()) }()
				lc := rdmanet.ListenConfig{Transport: &there, Providers: []string{provider}}
				l, err := lc.Listen(b.Context(), "rdma", testenv.Address())
				require.NoError(b, err)
				defer l.Close()
				d := rdmanet.Dialer{Transport: &here, Providers: []string{provider}}
				c, err := d.DialContext(b.Context(), "rdma", l.Addr().String())
				require.NoError(b, err)
				s, err := l.Accept()
				require.NoError(b, err)
				run(b, c.(*rdmanet.Conn), s.(*rdmanet.Conn), size)
				_ = s.Close()
				_ = c.Close()
			})
		}
	}
}
