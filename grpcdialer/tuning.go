package grpcdialer

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/experimental"
)

// gRPC starts with windows of 64 KiB, grows them by estimating the bandwidth-delay
// product with pings, and writes at most 32 KiB at a time. The pings cost wake-ups,
// which weigh more on a fabric than bytes do, and longer writes make fewer and larger
// RDMA writes.
const (
	// streamWindow allows a message of gRPC's largest default size, 4 MiB, to be
	// sent without waiting for a window update.
	streamWindow = 8 << 20
	// connWindow allows several streams to do so at once. It bounds what a server
	// may have to hold for one conn whose messages are not read.
	connWindow = 32 << 20
	// writeBuffer is the most that one Write passes to the conn.
	writeBuffer = 128 << 10
	// readBuffer is what one Read for a frame's header asks of the conn. It is
	// smaller than gRPC's data frames, 16 KiB, so most of a large message bypasses
	// the buffer and is copied once less. A Read of these conns is not a system
	// call, so more and smaller ones cost little. Many small messages still fit in,
	// and a conn without traffic holds no more than this.
	readBuffer = 8 << 10
	// streamWorkers is the number of goroutines that a server keeps ready for calls,
	// with stacks that have grown already; further calls get goroutines of their own.
	// This spares most calls the growing of a stack, over any transport.
	streamWorkers = 64
)

// TuningDialOptions returns dial options that adapt gRPC's buffers to a fabric:
// flow-control windows of 8 MiB per stream and 32 MiB per conn, which also turns off
// gRPC's own estimate of them; a write buffer of 128 KiB and a read buffer of 8 KiB;
// and a pool of buffers that are not cleared, by gRPC's experimental WithBufferPool.
// Options that follow these take precedence.
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
// NumStreamWorkers. A conn whose messages are not read may hold 32 MiB of the
// server's memory.
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
