package grpcdialer

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/experimental"
)

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
	// writeBuffer is what one Write passes to the conn at most.
	writeBuffer = 128 << 10
	// readBuffer is what one Read for a frame's header asks of the conn. It is
	// smaller than gRPC's frames of data, 16 KiB, so that most of a large
	// message passes it by and is copied once less: a Read of these conns is no
	// system call, so that more and smaller ones cost little. Many small
	// messages still fit in, and a conn without traffic holds no more than this.
	readBuffer = 8 << 10
	// streamWorkers is for how many calls at a time a server has goroutines
	// ready, whose stacks have grown already; further calls get goroutines of
	// their own. This spares most calls the growing of a stack, over any
	// transport.
	streamWorkers = 64
)

// TuningDialOptions returns dial options that suit gRPC's buffers to a fabric:
// flow-control windows of 8 MiB a stream and 32 MiB a conn, which also turns
// off gRPC's own estimate of them, a write buffer of 128 KiB and a read buffer
// of 8 KiB; and a pool of buffers that are not cleared, by gRPC's experimental
// WithBufferPool. Options that follow them win.
func TuningDialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithInitialWindowSize(streamWindow),
		grpc.WithInitialConnWindowSize(connWindow),
		grpc.WithReadBufferSize(readBuffer),
		grpc.WithWriteBufferSize(writeBuffer),
		experimental.WithBufferPool(&buffers),
	}
}

// TuningServerOptions is [TuningDialOptions] for a server: the same windows,
// buffers and pool, and 64 goroutines that wait for calls, by gRPC's experimental
// NumStreamWorkers. A conn that is not read may hold 32 MiB of the server's
// memory.
func TuningServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.InitialWindowSize(streamWindow),
		grpc.InitialConnWindowSize(connWindow),
		grpc.ReadBufferSize(readBuffer),
		grpc.WriteBufferSize(writeBuffer),
		experimental.BufferPool(&buffers),
		grpc.NumStreamWorkers(streamWorkers),
	}
}
