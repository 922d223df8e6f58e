package grpcdialer_test

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/status"

	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// backends are servers that one client's calls are spread over.
type backends struct {
	addrs   []string
	servers []*grpc.Server
	health  []*health.Server
	client  grpc_testing.BenchmarkServiceClient
}

// serviceName is the service whose health clients ask for.
const serviceName = "storage"

// newBackends starts n servers and a client with the given service config.
func newBackends(t *testing.T, provider string, n int, config string) *backends {
	t.Helper()
	var b backends
	var list []resolver.Address
	for range n {
		l, _ := listen(t, provider)
		s, h := newServer(), health.NewServer()
		grpc_testing.RegisterBenchmarkServiceServer(s, echo{})
		healthpb.RegisterHealthServer(s, h)
		h.SetServingStatus(serviceName, healthpb.HealthCheckResponse_SERVING)
		start(t, s, l)
		b.addrs, b.servers, b.health = append(b.addrs, l.Addr().String()), append(b.servers, s), append(b.health, h)
		list = append(list, resolver.Address{Addr: l.Addr().String()})
	}
	names := manual.NewBuilderWithScheme("backends")
	names.InitialState(resolver.State{Addresses: list})
	transport := new(rdmanet.Transport)
	t.Cleanup(func() { assert.NoError(t, transport.Close()) })
	b.client = client(t, names.Scheme()+":///all", &rdmanet.Dialer{Providers: []string{provider}, Transport: transport},
		grpc.WithResolvers(names), grpc.WithDefaultServiceConfig(config))
	return &b
}

// call makes a call and returns the address that answered.
func (b *backends) call(ctx context.Context, opts ...grpc.CallOption) (string, error) {
	var p peer.Peer
	_, err := b.client.UnaryCall(ctx, request(100), append(opts, grpc.Peer(&p))...)
	if err != nil {
		return "", err
	}
	return p.Addr.String(), nil
}

// spread makes calls and counts them by server.
func (b *backends) spread(t *testing.T, calls int) map[string]int {
	t.Helper()
	by := make(map[string]int)
	for range calls {
		addr, err := b.call(callContext(t))
		require.NoError(t, err)
		by[addr]++
	}
	return by
}

// settle waits until calls go to these servers only, and to all of them.
func (b *backends) settle(t *testing.T, servers ...string) {
	t.Helper()
	assert.EventuallyWithT(t, func(c *assert.CollectT) {
		by := make(map[string]bool)
		for range 2 * len(b.addrs) {
			addr, err := b.call(t.Context(), grpc.WaitForReady(true))
			require.NoError(c, err)
			by[addr] = true
		}
		assert.Len(c, by, len(servers))
		for _, addr := range servers {
			assert.Contains(c, by, addr)
		}
	}, patience, tick)
}

// TestRoundRobin: calls go to all servers in turn. When one stops gracefully they go to the
// others, and none fails.
func TestRoundRobin(t *testing.T) {
	for _, provider := range testenv.Providers() {
		t.Run(provider, func(t *testing.T) {
			b := newBackends(t, provider, 3, `{"loadBalancingConfig": [{"round_robin": {}}]}`)
			b.settle(t, b.addrs...)
			assert.Equal(t, map[string]int{b.addrs[0]: 5, b.addrs[1]: 5, b.addrs[2]: 5}, b.spread(t, 15))

			var calls sync.WaitGroup
			var stopped atomic.Bool
			for range 4 {
				calls.Go(func() {
					for !stopped.Load() {
						_, err := b.call(callContext(t))
						assert.NoError(t, err)
					}
				})
			}
			b.servers[0].GracefulStop()
			stopped.Store(true)
			calls.Wait()
			b.settle(t, b.addrs[1:]...)

			b.servers[1].Stop() // like a crash: calls in flight may fail
			b.settle(t, b.addrs[2])
		})
	}
}

// TestHealthChecks: a client that watches the health of its servers avoids those
// that report that they do not serve.
func TestHealthChecks(t *testing.T) {
	for _, provider := range testenv.Providers() {
		t.Run(provider, func(t *testing.T) {
			b := newBackends(t, provider, 2,
				`{"loadBalancingConfig": [{"round_robin": {}}], "healthCheckConfig": {"serviceName": "`+serviceName+`"}}`)
			b.settle(t, b.addrs...)
			b.health[0].SetServingStatus(serviceName, healthpb.HealthCheckResponse_NOT_SERVING)
			b.settle(t, b.addrs[1])
			b.health[1].SetServingStatus(serviceName, healthpb.HealthCheckResponse_NOT_SERVING)
			assert.EventuallyWithT(t, func(c *assert.CollectT) {
				_, err := b.call(t.Context())
				assert.Equal(c, codes.Unavailable, status.Code(err))
				assert.ErrorContains(c, err, "NOT_SERVING")
			}, patience, tick)
			b.health[0].SetServingStatus(serviceName, healthpb.HealthCheckResponse_SERVING)
			b.settle(t, b.addrs[0])
		})
	}
}

// TestHealthService uses the health service directly, as probes do.
func TestHealthService(t *testing.T) {
	onEach(t, func(t *testing.T, l net.Listener, d *rdmanet.Dialer) {
		s, h := newServer(), health.NewServer()
		healthpb.RegisterHealthServer(s, h)
		start(t, s, l)
		c := healthpb.NewHealthClient(dial(t, "rdma://"+l.Addr().String(), d))
		got, err := c.Check(callContext(t), new(healthpb.HealthCheckRequest))
		require.NoError(t, err)
		assert.Equal(t, healthpb.HealthCheckResponse_SERVING, got.GetStatus())
		watch, err := c.Watch(callContext(t), &healthpb.HealthCheckRequest{Service: serviceName})
		require.NoError(t, err)
		for _, want := range []healthpb.HealthCheckResponse_ServingStatus{
			healthpb.HealthCheckResponse_SERVICE_UNKNOWN, healthpb.HealthCheckResponse_SERVING, healthpb.HealthCheckResponse_NOT_SERVING,
		} {
			if want != healthpb.HealthCheckResponse_SERVICE_UNKNOWN { // the first answer, before a status is set
				h.SetServingStatus(serviceName, want)
			}
			got, err := watch.Recv()
			require.NoError(t, err)
			assert.Equal(t, want, got.GetStatus())
		}
	})
}
