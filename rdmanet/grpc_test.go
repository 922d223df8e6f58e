package rdmanet_test

import (
	"bytes"
	"errors"
	"io"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/seed202c38ff/fabricnet/grpcdialer"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// echoService sends back each message of a stream.
var echoService = grpc.ServiceDesc{
	ServiceName: "Echo",
	HandlerType: (*any)(nil),
	Streams: []grpc.StreamDesc{{
		StreamName: "Both", ServerStreams: true, ClientStreams: true,
		Handler: func(_ any, s grpc.ServerStream) error {
			for {
				m := new(wrapperspb.BytesValue)
				if err := s.RecvMsg(m); errors.Is(err, io.EOF) {
					return nil
				} else if err != nil {
					return err
				}
				if err := s.SendMsg(m); err != nil {
					return err
				}
			}
		},
	}},
}

// TestGRPC: concurrent streams carry messages of all sizes over each fabric. Package
// grpcdialer has more tests over the real ones.
func TestGRPC(t *testing.T) {
	overEach(t, func(t *testing.T, l *rdmanet.Listener, d *rdmanet.Dialer) {
		srv := grpc.NewServer()
		srv.RegisterService(&echoService, nil)
		var serving sync.WaitGroup
		serving.Go(func() { assert.NoError(t, srv.Serve(l)) })
		defer serving.Wait()
		defer srv.Stop()
		cc, err := grpc.NewClient("rdma://"+l.Addr().String(), grpcdialer.WithResolver(), grpcdialer.DialOption(d),
			grpc.WithTransportCredentials(insecure.NewCredentials()))
		require.NoError(t, err)
		defer func() { assert.NoError(t, cc.Close()) }()

		var streams sync.WaitGroup
		for i := range 8 {
			streams.Go(func() {
				s, err := cc.NewStream(t.Context(), &echoService.Streams[0], "/Echo/Both")
				if !assert.NoError(t, err) {
					return
				}
				for _, size := range []int{0, 1, 64, 10_000, 100_000, 1 << 20} {
					want := bytes.Repeat([]byte{byte(i)}, size)
					assert.NoError(t, s.SendMsg(wrapperspb.Bytes(want)))
					got := new(wrapperspb.BytesValue)
					if !assert.NoError(t, s.RecvMsg(got)) {
						return
					}
					assert.True(t, bytes.Equal(want, got.GetValue()), "%d bytes", size)
				}
				assert.NoError(t, s.CloseSend())
				assert.ErrorIs(t, s.RecvMsg(new(wrapperspb.BytesValue)), io.EOF)
			})
		}
		streams.Wait()
	})
}
