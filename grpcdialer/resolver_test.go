package grpcdialer

import (
	"context"
	"errors"
	"net/url"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/status"
)

// recorder is the part of a gRPC client that a resolver talks to.
type recorder struct {
	resolver.ClientConn
	state resolver.State
	err   error
}

func (r *recorder) UpdateState(s resolver.State) error {
	r.state = s
	return r.err
}

func parse(t *testing.T, target string) resolver.Target {
	t.Helper()
	u, err := url.Parse(target)
	require.NoError(t, err)
	return resolver.Target{URL: *u}
}

func TestResolverPassesTheAddressOn(t *testing.T) {
	for _, c := range []struct{ target, address, authority string }{
		{"rdma://storage7:8080", "storage7:8080", "storage7:8080"},
		{"rdma:///storage7:8080", "storage7:8080", "storage7:8080"},
		{"rdma:storage7:8080", "storage7:8080", "storage7:8080"},
		{"rdma:///10.0.0.7:http", "10.0.0.7:http", "10.0.0.7:http"},
		{"rdma://[::1]:8080", "[::1]:8080", "[::1]:8080"},
		{"rdma:///[::1]:8080", "[::1]:8080", "[::1]:8080"},
		{"rdma://:8080", ":8080", "localhost:8080"},
		{"rdma:///:8080", ":8080", "localhost:8080"},
		{"rdma://storage7:8080/", "storage7:8080", "storage7:8080"},
	} {
		t.Run(c.target, func(t *testing.T) {
			target := parse(t, c.target)
			client := new(recorder)
			r, err := builder{}.Build(target, client, resolver.BuildOptions{})
			require.NoError(t, err)
			r.ResolveNow(resolver.ResolveNowOptions{})
			r.Close()
			require.Len(t, client.state.Endpoints, 1)
			assert.Equal(t, []resolver.Address{{Addr: c.address}}, client.state.Endpoints[0].Addresses)
			assert.Equal(t, []resolver.Address{{Addr: c.address}}, client.state.Addresses)
			assert.Equal(t, c.authority, builder{}.OverrideAuthority(target))
		})
	}
}

func TestResolverRefusesBadTargets(t *testing.T) {
	for target, message := range map[string]string{
		"rdma://storage7":           "missing port",
		"rdma:///storage7":          "missing port",
		"rdma://":                   "missing port",
		"rdma://storage7:":          "has no port",
		"rdma:///::1:8080":          "too many colons",
		"rdma://storage7:8080/more": "has a path",
	} {
		_, err := builder{}.Build(parse(t, target), new(recorder), resolver.BuildOptions{})
		require.ErrorContains(t, err, message, target)
		assert.ErrorContains(t, err, "want rdma://host:port", target)
	}
}

func TestResolverReturnsTheClientsError(t *testing.T) {
	refused := errors.New("refused")
	_, err := builder{}.Build(parse(t, "rdma://h:1"), &recorder{err: refused}, resolver.BuildOptions{})
	assert.ErrorIs(t, err, refused)
}

func TestNothingIsRegisteredGlobally(t *testing.T) {
	assert.Nil(t, resolver.Get(Scheme))
}

func TestBadTargetFailsCallsWithItsReason(t *testing.T) {
	c, err := grpc.NewClient("rdma://storage7", DialOption(nil), WithResolver(),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err == nil {
		defer c.Close()
		_, err = grpc_testing.NewTestServiceClient(c).EmptyCall(context.Background(), new(grpc_testing.Empty))
		assert.Equal(t, codes.Unavailable, status.Code(err))
	}
	assert.ErrorContains(t, err, "missing port")
}
