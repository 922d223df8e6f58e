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
	"slices"
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

// patience is how long a test waits for something that must happen; it looks every tick.
const (
	patience = 20 * time.Second
	tick     = 5 * time.Millisecond
)

// maxMessage makes room for a payload of 4 MiB, gRPC's limit for a message.
const maxMessage = 16 << 20

// networkOf returns what a call came over, by the address of its conn.
func networkOf(a net.Addr) string {
	if info, ok := rdmanet.InfoOf(a); ok && info.Provider != "" {
		return "rdma"
	}
	return "tcp"
}

// echo answers with the payload that it was sent.
type echo struct {
	grpc_testing.UnimplementedBenchmarkServiceServer
}

func (echo) UnaryCall(ctx context.Context, in *grpc_testing.SimpleRequest) (*grpc_testing.SimpleResponse, error) {
	if p, ok := peer.FromContext(ctx); !ok || networkOf(p.Addr) != "rdma" {
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
func serve(t *testing.T, l net.Listener, opts ...grpc.ServerOption) *grpc.Server {
	t.Helper()
	return serveAs(t, l, echo{}, opts...)
}

func serveAs(t *testing.T, l net.Listener, service grpc_testing.BenchmarkServiceServer, opts ...grpc.ServerOption) *grpc.Server {
	t.Helper()
	s := newServer(opts...)
	grpc_testing.RegisterBenchmarkServiceServer(s, service)
	start(t, s, l)
	return s
}

// newServer returns a server with this package's options and room for large
// messages. opts override both.
func newServer(opts ...grpc.ServerOption) *grpc.Server {
	return grpc.NewServer(slices.Concat(grpcdialer.TuningServerOptions(),
		[]grpc.ServerOption{grpc.MaxRecvMsgSize(maxMessage)}, opts)...)
}

// start runs a server on l until the test ends.
func start(t *testing.T, s *grpc.Server, l net.Listener) {
	t.Helper()
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		assert.NoError(t, <-served)
	})
}

// client returns a client of target through d that is closed when the test
// ends.
func client(t *testing.T, target string, d *rdmanet.Dialer, opts ...grpc.DialOption) grpc_testing.BenchmarkServiceClient {
	t.Helper()
	return grpc_testing.NewBenchmarkServiceClient(dial(t, target, d, opts...))
}

// dial returns the ClientConn that client uses. opts override the options set here.
func dial(t *testing.T, target string, d *rdmanet.Dialer, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	c, err := grpc.NewClient(target, slices.Concat(grpcdialer.TuningDialOptions(), []grpc.DialOption{
		grpcdialer.DialOption(d),
		grpcdialer.WithResolver(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
	}, opts)...)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() }) // fails only if the test has closed it already
	return c
}

// listen returns a listener over one provider, and a dialer to reach it.
func listen(t *testing.T, provider string) (net.Listener, *rdmanet.Dialer) {
	t.Helper()
	only, transport := []string{provider}, new(rdmanet.Transport)
	t.Cleanup(func() { assert.NoError(t, transport.Close()) })
	l, err := (&rdmanet.ListenConfig{Providers: only, Transport: transport}).Listen(t.Context(), "rdma", testenv.Address())
	require.NoError(t, err)
	return l, &rdmanet.Dialer{Providers: only, Transport: transport}
}

// onEach runs a test over each provider.
func onEach(t *testing.T, test func(t *testing.T, l net.Listener, d *rdmanet.Dialer)) {
	t.Helper()
	for _, provider := range testenv.Providers() {
		t.Run(provider, func(t *testing.T) {
			l, d := listen(t, provider)
			test(t, l, d)
		})
	}
}

// whose returns the ConnInfo of the conn that a call went over, which it finds through the
// call's peer.
func whose(t *testing.T, p *peer.Peer) rdmanet.ConnInfo {
	t.Helper()
	info, ok := rdmanet.InfoOf(p.Addr)
	require.True(t, ok)
	return info
}

func callContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// noise is random data from which payloads are cut.
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
	onEach(t, func(t *testing.T, l net.Listener, d *rdmanet.Dialer) {
		serve(t, l)
		c := client(t, "rdma://"+l.Addr().String(), d)
		for _, size := range []int{0, 8 << 10, 4 << 20} {
			t.Run(fmt.Sprintf("unary %d", size), func(t *testing.T) { testUnary(t, c, size) })
			t.Run(fmt.Sprintf("streaming %d", size), func(t *testing.T) { testStreaming(t, c, size) })
		}
	})
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

// testStreaming sends without waiting for the answers, which arrive meanwhile.
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
