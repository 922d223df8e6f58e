package grpcdialer

import "google.golang.org/grpc"

// gRPC starts with windows of 64 KiB, grows them by estimates of the
// bandwidth-delay product that its pings provide, and writes at most 32 KiB at
// a time. The pings cost wake-ups, which weigh more on a fabric than bytes do,
// and longer writes make fewer and larger RDMA writes.
const (
	// streamWindow lets a message of gRPC's largest default size, 4 MiB, be
	// sent without waiting for a window update.
	streamWindow = 8 << 20
	// connWindow lets several streams do so at once. It bounds what a server
	// may have to hold for one conn whose messages are not read.
	connWindow = 32 << 20
	// bufferSize is what one Write passes to the conn at most, and what one
	// Read asks of it.
	bufferSize = 128 << 10
)

// TuningDialOptions returns dial options that suit gRPC's buffers to a fabric:
// flow-control windows of 8 MiB a stream and 32 MiB a conn, which also turns
// off gRPC's own estimate of them, and read and write buffers of 128 KiB. Options
// that follow them win.
func TuningDialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithInitialWindowSize(streamWindow),
		grpc.WithInitialConnWindowSize(connWindow),
		grpc.WithReadBufferSize(bufferSize),
		grpc.WithWriteBufferSize(bufferSize),
	}
}

// TuningServerOptions is [TuningDialOptions] for a server: the same windows
// and buffers. A conn that is not read may hold 32 MiB of the server's memory.
func TuningServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.InitialWindowSize(streamWindow),
		grpc.InitialConnWindowSize(connWindow),
		grpc.ReadBufferSize(bufferSize),
		grpc.WriteBufferSize(bufferSize),
	}
}
