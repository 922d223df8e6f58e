package grpcdialer_test

import (
	"bytes"
	"flag"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"google.golang.org/grpc/interop/grpc_testing"

	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

var soak = flag.Bool("soak", false, "repeat what depends on timing as often as make soak does")

// TestManyCallsInFlight: all calls complete, with hundreds of conns with dozens of calls in
// flight each, and with a few conns with hundreds each, whether the conns share one peer or
// each have their own.
func TestManyCallsInFlight(t *testing.T) {
	providers, calls := []string{"shm", "tcp;ofi_rxm"}, 1
	if *soak {
		providers, calls = append(providers, testenv.Native), 20
	}
	for _, provider := range providers {
		t.Run(provider, func(t *testing.T) {
			addr := startServer(t, provider, testenv.Address()).addr
			for _, tt := range []struct {
				conns, inFlight int
				alone           bool
			}{
				{256, 64, false},
				{16, 512, false},
				{16, 64, true}, // fewer than Transport.MaxShmPeers
			} {
				t.Run(fmt.Sprintf("%d x %d, alone %v", tt.conns, tt.inFlight, tt.alone), func(t *testing.T) {
					transport := new(rdmanet.Transport)
					t.Cleanup(func() { assert.NoError(t, transport.Close()) })
					d := &rdmanet.Dialer{Providers: []string{provider}, Transport: transport, DisableReuse: tt.alone}
					clients := make([]grpc_testing.BenchmarkServiceClient, tt.conns)
					for i := range clients {
						clients[i] = client(t, "rdma://"+addr, d)
						repeat(t, clients[i], 1, 0) // one client after the other, since gRPC limits the time for connecting
					}
					var all sync.WaitGroup
					for _, c := range clients {
						for range tt.inFlight {
							all.Go(func() { repeat(t, c, calls, 8<<10) })
						}
					}
					all.Wait()
					peers := 1
					if tt.alone {
						peers = tt.conns
					}
					assert.Equal(t, peers, transport.Stats().Peers)
				})
			}
		})
	}
}

// repeat makes calls one after the other, and checks the answers.
func repeat(t *testing.T, c grpc_testing.BenchmarkServiceClient, times, size int) {
	t.Helper()
	for range times {
		want := request(size)
		got, err := c.UnaryCall(t.Context(), want)
		if !assert.NoError(t, err) {
			return
		}
		assert.True(t, bytes.Equal(want.GetPayload().GetBody(), got.GetPayload().GetBody()), "payloads differ")
	}
}
