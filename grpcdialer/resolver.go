package grpcdialer

import (
	"fmt"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/status"
)

// Scheme is the scheme of the targets that [WithResolver] adds.
const Scheme = "rdma"

// WithResolver makes one gRPC client understand the targets "rdma://host:port"
// and "rdma:///host:port"; it registers nothing globally. The host name is resolved
// when a conn is dialed, by the dialer of [DialOption], which must be given
// too. If a target's address has no port, the client's calls fail with an error
// that says so.
func WithResolver() grpc.DialOption {
	return grpc.WithResolvers(builder{})
}

// builder makes resolvers that pass the target's address to the dialer as it
// is.
type builder struct{}

func (builder) Scheme() string { return Scheme }

func (builder) Build(target resolver.Target, cc resolver.ClientConn, _ resolver.BuildOptions) (resolver.Resolver, error) {
	address, err := addressOf(target)
	if err != nil {
		// Before gRPC-Go 1.78 calls would fail with Unknown without a code.
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	// An error of UpdateState means that cc does not want this state, and there is no other.
	addresses := []resolver.Address{{Addr: address}} // older balancers look here
	state := resolver.State{Addresses: addresses, Endpoints: []resolver.Endpoint{{Addresses: addresses}}}
	if err := cc.UpdateState(state); err != nil {
		return nil, err
	}
	return fixed{}, nil
}

// OverrideAuthority makes the :authority of calls, and with it the name that TLS
// verifies, the address in the target, in both forms of a target. Without it gRPC
// would look for the address in the path only.
func (builder) OverrideAuthority(target resolver.Target) string {
	address := rawAddress(target)
	host, port, err := net.SplitHostPort(address)
	if err == nil && host == "" {
		return net.JoinHostPort("localhost", port)
	}
	return address
}

// rawAddress returns host:port of "rdma://host:port" or "rdma:///host:port".
func rawAddress(target resolver.Target) string {
	if target.URL.Host != "" {
		return target.URL.Host
	}
	return target.Endpoint()
}

// addressOf returns the target's address after checking its form.
func addressOf(target resolver.Target) (string, error) {
	if target.URL.Host != "" && target.Endpoint() != "" {
		return "", fmt.Errorf("grpcdialer: target %q has a path: want rdma://host:port", target.String())
	}
	address := rawAddress(target)
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", fmt.Errorf("grpcdialer: target %q: %w: want rdma://host:port", target.String(), err)
	}
	if port == "" {
		return "", fmt.Errorf("grpcdialer: target %q has no port: want rdma://host:port", target.String())
	}
	return address, nil
}

// fixed is the resolver of an address that does not change.
type fixed struct{}

func (fixed) ResolveNow(resolver.ResolveNowOptions) {}
func (fixed) Close()                                {}
