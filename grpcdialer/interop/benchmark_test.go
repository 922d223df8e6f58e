package interop

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/benchmark"
	"google.golang.org/grpc/encoding"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"

	"github.com/seed202c38ff/fabricnet/grpcdialer"
	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// serve starts one of gRPC-Go's benchmark servers and returns a client for it.
func serve(t *testing.T, provider string, info benchmark.ServerInfo, server []grpc.ServerOption, opts ...grpc.DialOption) testpb.BenchmarkServiceClient {
	t.Helper()
	transport := new(rdmanet.Transport)
	t.Cleanup(func() { assert.NoError(t, transport.Close()) })
	var err error
	info.Listener, err = (&rdmanet.ListenConfig{Providers: []string{provider}, Transport: transport}).
		Listen(t.Context(), "rdma", testenv.Address())
	require.NoError(t, err)
	t.Cleanup(benchmark.StartServer(info, append(grpcdialer.TuningServerOptions(), server...)...))
	opts = append(append(options(t, provider, false), grpcdialer.TuningDialOptions()...), opts...)
	cc := benchmark.NewClientConn("rdma://"+info.Listener.Addr().String(), opts...)
	t.Cleanup(func() { assert.NoError(t, cc.Close()) })
	return testpb.NewBenchmarkServiceClient(cc)
}

// sizes are pairs of a request's and a response's size, in bytes.
var sizes = [][2]int{{0, 0}, {1, 1}, {64, 64}, {8 << 10, 100}, {100, 64 << 10}, {1 << 20, 1 << 20}}

// checked is an interceptor that fails a call if the answer does not have the size that was asked
// for. gRPC-Go's benchmarks do not check that.
func checked(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if err := call(ctx, method, req, reply, cc, opts...); err != nil {
		return err
	}
	want, got := req.(*testpb.SimpleRequest).GetResponseSize(), reply.(*testpb.SimpleResponse).GetPayload().GetBody()
	if len(got) != int(want) {
		return fmt.Errorf("%d bytes came, not %d", len(got), want)
	}
	return nil
}

// counted is a stream that counts what it receives.
type counted struct {
	testpb.BenchmarkService_StreamingCallClient
	messages, bytes int
}

func (c *counted) Recv() (*testpb.SimpleResponse, error) {
	m, err := c.BenchmarkService_StreamingCallClient.Recv()
	if err == nil {
		c.messages, c.bytes = c.messages+1, c.bytes+len(m.GetPayload().GetBody())
	}
	return m, err
}

func (c *counted) RecvMsg(m any) error {
	err := c.BenchmarkService_StreamingCallClient.RecvMsg(m)
	if b, ok := m.(*[]byte); ok && err == nil {
		c.messages, c.bytes = c.messages+1, c.bytes+len(*b)
	}
	return err
}

func stream(t *testing.T, c testpb.BenchmarkServiceClient, headers ...string) *counted {
	t.Helper()
	s, err := c.StreamingCall(metadata.AppendToOutgoingContext(withPatience(t), headers...))
	require.NoError(t, err)
	return &counted{BenchmarkService_StreamingCallClient: s}
}

func onEach(t *testing.T, test func(t *testing.T, provider string)) {
	t.Helper()
	for _, provider := range testenv.Providers() {
		t.Run(provider, func(t *testing.T) { test(t, provider) })
	}
}

func TestBenchmarkUnary(t *testing.T) {
	onEach(t, func(t *testing.T, provider string) {
		c := serve(t, provider, benchmark.ServerInfo{Type: "protobuf"}, nil, grpc.WithUnaryInterceptor(checked))
		for _, size := range sizes {
			var calls sync.WaitGroup
			for range 4 {
				calls.Go(func() {
					for range 2 {
						assert.NoError(t, benchmark.DoUnaryCall(c, size[0], size[1]))
					}
				})
			}
			calls.Wait()
		}
	})
}

func TestBenchmarkStreaming(t *testing.T) {
	const rounds = 8
	onEach(t, func(t *testing.T, provider string) {
		c := serve(t, provider, benchmark.ServerInfo{Type: "protobuf"}, nil)
		for _, size := range sizes {
			s := stream(t, c)
			for range rounds {
				run(t, func() { require.NoError(t, benchmark.DoStreamingRoundTrip(s, size[0], size[1])) })
			}
			assert.Equal(t, rounds, s.messages)
			assert.Equal(t, rounds*size[1], s.bytes)
			require.NoError(t, s.CloseSend())

			s = stream(t, c, benchmark.PreloadMsgSizeHeader, fmt.Sprint(size[1]))
			var m grpc.PreparedMsg
			require.NoError(t, m.Encode(s.BenchmarkService_StreamingCallClient, &testpb.SimpleRequest{
				Payload: benchmark.NewPayload(testpb.PayloadType_COMPRESSABLE, size[0]), ResponseSize: int32(size[1]),
			}))
			for range rounds {
				require.NoError(t, benchmark.DoStreamingRoundTripPreloaded(s, &m))
			}
			assert.Equal(t, rounds, s.messages)
			assert.Equal(t, rounds*size[1], s.bytes)
			require.NoError(t, s.CloseSend())
		}
	})
}

// Both sides send without waiting for each other.
func TestBenchmarkUnconstrained(t *testing.T) {
	const messages, size = 200, 16 << 10
	onEach(t, func(t *testing.T, provider string) {
		c := serve(t, provider, benchmark.ServerInfo{Type: "protobuf"}, nil)
		ctx, cancel := context.WithCancel(withPatience(t))
		defer cancel()
		s, err := c.StreamingCall(metadata.AppendToOutgoingContext(ctx, benchmark.UnconstrainedStreamingHeader, "true"))
		require.NoError(t, err)
		sent := make(chan error, 1)
		go func() {
			m := &testpb.SimpleRequest{Payload: benchmark.NewPayload(testpb.PayloadType_COMPRESSABLE, size), ResponseSize: size}
			for range messages {
				if err := s.Send(m); err != nil {
					sent <- err
					return
				}
			}
			sent <- nil
		}()
		for range messages {
			m, err := s.Recv()
			require.NoError(t, err)
			require.Len(t, m.GetPayload().GetBody(), size)
		}
		require.NoError(t, <-sent)
	})
}

// bytesCodec sends bytes as they are, as the server of type bytebuf expects.
type bytesCodec struct{}

var _ encoding.CodecV2 = bytesCodec{}

func (bytesCodec) Name() string { return "bytes" }

func (bytesCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*[]byte))}, nil
}

func (bytesCodec) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

func TestBenchmarkByteBuf(t *testing.T) {
	const rounds = 8
	onEach(t, func(t *testing.T, provider string) {
		for _, size := range sizes {
			c := serve(t, provider, benchmark.ServerInfo{Type: "bytebuf", Metadata: int32(size[1])},
				[]grpc.ServerOption{grpc.ForceServerCodecV2(bytesCodec{})}, grpc.WithDefaultCallOptions(grpc.ForceCodecV2(bytesCodec{})))
			s := stream(t, c)
			for range rounds {
				require.NoError(t, benchmark.DoByteBufStreamingRoundTrip(s, size[0], size[1]))
			}
			assert.Equal(t, rounds, s.messages)
			assert.Equal(t, rounds*size[1], s.bytes)
			require.NoError(t, s.CloseSend())
		}
	})
}
