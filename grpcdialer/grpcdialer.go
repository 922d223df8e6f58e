package grpcdialer

import (
	"context"
	"net"

	"google.golang.org/grpc"

	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// network is rdmanet's name for a fabric that is reached over IPv4 or IPv6.
const network = "rdma"

// DialOption makes a gRPC client open its conns with d; nil means the zero
// Dialer. It works with every target whose addresses have the form host:port, such
// as "host:port" itself, and keeps gRPC from using an HTTP proxy.
func DialOption(d *rdmanet.Dialer) grpc.DialOption {
	return grpc.WithContextDialer(ContextDialer(d))
}

// ContextDialer returns d, or the zero Dialer if d is nil, in the form that
// [grpc.WithContextDialer] takes. The function may be called concurrently; its
// errors are those of rdmanet.Dialer.DialContext.
func ContextDialer(d *rdmanet.Dialer) func(ctx context.Context, address string) (net.Conn, error) {
	if d == nil {
		d = new(rdmanet.Dialer)
	}
	return func(ctx context.Context, address string) (net.Conn, error) {
		return d.DialContext(ctx, network, address)
	}
}

// Listen returns a listener for grpc.Server.Serve on address, a host:port as
// in [net.Listen]. Use rdmanet.ListenConfig instead to choose providers or
// limits. Its errors are those of rdmanet.Listen.
func Listen(address string) (net.Listener, error) {
	return rdmanet.Listen(network, address)
}
