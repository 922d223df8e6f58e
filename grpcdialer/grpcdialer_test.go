package grpcdialer_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/seed202c38ff/fabricnet/grpcdialer"
	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// maxMessage makes room for a payload of 4 MiB, gRPC's limit for a message.
const maxMessage = 16 << 20

// echo answers with the payload that it was sent.
type echo struct {
	grpc_testing.UnimplementedBenchmarkServiceServer
}

func (echo) UnaryCall(ctx context.Context, in *grpc_testing.SimpleRequest) (*grpc_testing.SimpleResponse, error) {
	if p, ok := peer.FromContext(ctx); !ok || p.Addr.Network() != "rdma" {
		return nil, status.Error(codes.FailedPrecondition, "the call did not come over rdma")
	}
	return &grpc_testing.SimpleResponse{Payload: in.GetPayload()}, nil
}

func (echo) StreamingCall(s grpc.BidiStreamingServer[grpc_testing.SimpleRequest, grpc_testing.SimpleResponse]) error {
	for {
		in, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := s.Send(&grpc_testing.SimpleResponse{Payload: in.GetPayload()}); err != nil {
			return err
		}
	}
}

// serve runs an echo server on l until the test ends.
func serve(t *testing.T, l net.Listener) {
	t.Helper()
	serveAs(t, l, echo{})
}

func serveAs(t *testing.T, l net.Listener, service grpc_testing.BenchmarkServiceServer) {
	t.Helper()
	s := grpc.NewServer(append(grpcdialer.TuningServerOptions(), grpc.MaxRecvMsgSize(maxMessage))...)
	grpc_testing.RegisterBenchmarkServiceServer(s, service)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		assert.NoError(t, <-served)
	})
}

// client returns a client of target through d that is closed when the test
// ends.
func client(t *testing.T, target string, d *rdmanet.Dialer) grpc_testing.BenchmarkServiceClient {
	t.Helper()
	c, err := grpc.NewClient(target, append(grpcdialer.TuningDialOptions(),
		grpcdialer.DialOption(d),
		grpcdialer.WithResolver(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)))...)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, c.Close()) })
	return grpc_testing.NewBenchmarkServiceClient(c)
}

func callContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// noise is what payloads are cut from.
var noise = sync.OnceValue(func() []byte {
	b := make([]byte, 8<<20)
	_, _ = rand.NewChaCha8([32]byte{}).Read(b)
	return b
})

// request returns a request whose payload differs from call to call.
func request(size int) *grpc_testing.SimpleRequest {
	all := noise()
	from := rand.IntN(len(all) - size)
	return &grpc_testing.SimpleRequest{Payload: &grpc_testing.Payload{Body: all[from : from+size]}}
}

func TestCallsOverEachProvider(t *testing.T) {
	for _, provider := range testenv.Providers() {
		t.Run(provider, func(t *testing.T) {
			only := []string{provider}
			transport := new(rdmanet.Transport)
			t.Cleanup(func() { assert.NoError(t, transport.Close()) })
			l, err := (&rdmanet.ListenConfig{Providers: only, Transport: transport}).Listen(t.Context(), "rdma", testenv.Address())
			require.NoError(t, err)
			serve(t, l)
			c := client(t, "rdma://"+l.Addr().String(), &rdmanet.Dialer{Providers: only, Transport: transport})
			for _, size := range []int{0, 8 << 10, 4 << 20} {
				t.Run(fmt.Sprintf("unary %d", size), func(t *testing.T) { testUnary(t, c, size) })
				t.Run(fmt.Sprintf("streaming %d", size), func(t *testing.T) { testStreaming(t, c, size) })
			}
		})
	}
}

// testUnary makes calls one after the other, then several at once.
func testUnary(t *testing.T, c grpc_testing.BenchmarkServiceClient, size int) {
	ctx := callContext(t)
	var calls sync.WaitGroup
	for range 4 {
		calls.Go(func() {
			for range 2 {
				want := request(size)
				got, err := c.UnaryCall(ctx, want)
				if !assert.NoError(t, err) {
					return
				}
				assert.True(t, bytes.Equal(want.GetPayload().GetBody(), got.GetPayload().GetBody()), "payloads differ")
			}
		})
	}
	calls.Wait()
}

// testStreaming sends without waiting for the answers, which come meanwhile.
func testStreaming(t *testing.T, c grpc_testing.BenchmarkServiceClient, size int) {
	const messages = 8
	s, err := c.StreamingCall(callContext(t))
	require.NoError(t, err)
	sent := sha256.New()
	done := make(chan error, 1)
	go func() {
		for range messages {
			m := request(size)
			sent.Write(m.GetPayload().GetBody())
			if err := s.Send(m); err != nil {
				done <- err
				return
			}
		}
		done <- s.CloseSend()
	}()
	got, n := sha256.New(), 0
	for {
		m, err := s.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		got.Write(m.GetPayload().GetBody())
		n++
	}
	require.NoError(t, <-done)
	assert.Equal(t, messages, n)
	assert.Equal(t, sent.Sum(nil), got.Sum(nil))
}

func TestTargetsAndTheZeroDialer(t *testing.T) {
	l, err := grpcdialer.Listen("127.0.0.1:0")
	require.NoError(t, err)
	serve(t, l)
	_, port, err := net.SplitHostPort(l.Addr().String())
	require.NoError(t, err)
	for _, target := range []string{
		"127.0.0.1:" + port,
		"dns:///127.0.0.1:" + port,
		"passthrough:///127.0.0.1:" + port,
		"rdma://127.0.0.1:" + port,
		"rdma:///127.0.0.1:" + port,
	} {
		t.Run(target, func(t *testing.T) { testUnary(t, client(t, target, nil), 1000) })
	}
}

func TestContextDialerHonoursItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c, err := grpcdialer.ContextDialer(nil)(ctx, "127.0.0.1:1")
	require.Error(t, err)
	assert.Nil(t, c)
	assert.ErrorIs(t, err, context.Canceled)
}

func TestRefusedDialIsUnavailable(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	_, err = client(t, "rdma://"+l.Addr().String(), nil).UnaryCall(callContext(t), request(1))
	assert.Equal(t, codes.Unavailable, status.Code(err))
	assert.ErrorContains(t, err, "refused")
}
