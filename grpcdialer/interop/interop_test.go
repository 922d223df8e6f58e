package interop

import (
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/interop"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"

	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

const patience = time.Minute

// subject is a server, and what is needed to reach it.
type subject struct {
	addrs []string
	opts  []grpc.DialOption
	cc    *grpc.ClientConn // to the first address
}

// form is one way to run a case.
type form func(context.Context, *testing.T, *subject)

// balancing is the service config with which gRPC-Go's script runs all cases; those about load
// need it.
const balancing = `{"loadBalancingConfig": [{"test_backend_metrics_load_balancer": {}}]}`

// calls adapts the cases that take a client.
func calls(do func(context.Context, testpb.TestServiceClient, ...grpc.CallOption)) form {
	return client(func(ctx context.Context, c testpb.TestServiceClient) { do(ctx, c) })
}

func client(do func(context.Context, testpb.TestServiceClient)) form {
	return func(ctx context.Context, _ *testing.T, s *subject) { do(ctx, testpb.NewTestServiceClient(s.cc)) }
}

// cases are gRPC-Go's cases, by the names of their functions.
var cases = map[string][]form{
	"DoEmptyUnaryCall":           {calls(interop.DoEmptyUnaryCall)},
	"DoLargeUnaryCall":           {calls(interop.DoLargeUnaryCall)},
	"DoClientStreaming":          {calls(interop.DoClientStreaming)},
	"DoServerStreaming":          {calls(interop.DoServerStreaming)},
	"DoPingPong":                 {calls(interop.DoPingPong)},
	"DoEmptyStream":              {calls(interop.DoEmptyStream)},
	"DoTimeoutOnSleepingServer":  {calls(interop.DoTimeoutOnSleepingServer)},
	"DoCancelAfterBegin":         {calls(interop.DoCancelAfterBegin)},
	"DoCancelAfterFirstResponse": {calls(interop.DoCancelAfterFirstResponse)},
	"DoCustomMetadata":           {calls(interop.DoCustomMetadata)},
	"DoStatusCodeAndMessage":     {calls(interop.DoStatusCodeAndMessage)},
	"DoSpecialStatusMessage":     {calls(interop.DoSpecialStatusMessage)},
	"DoUnimplementedMethod":      {unimplementedMethod},
	"DoUnimplementedService":     {unimplementedService},
	"DoPickFirstUnary":           {pickFirst},
	"DoORCAPerRPCTest":           {client(interop.DoORCAPerRPCTest)},
	"DoORCAOOBTest":              {client(interop.DoORCAOOBTest)},
	"DoSoakTest":                 {soakOfCalls, soakOfChannels},
}

// leftOut are the cases for which the package's documentation has an excuse.
var leftOut = []string{
	"DoComputeEngineChannelCredentials", "DoComputeEngineCreds", "DoGoogleDefaultCredentials",
	"DoJWTTokenCreds", "DoOauth2TokenCreds", "DoPerRPCCreds", "DoServiceAccountCreds",
}

func unimplementedMethod(ctx context.Context, _ *testing.T, s *subject) {
	interop.DoUnimplementedMethod(ctx, s.cc)
}

func unimplementedService(ctx context.Context, _ *testing.T, s *subject) {
	interop.DoUnimplementedService(ctx, testpb.NewUnimplementedServiceClient(s.cc))
}

// pickFirst runs its case with two servers to choose from.
func pickFirst(ctx context.Context, t *testing.T, s *subject) {
	names := manual.NewBuilderWithScheme("both")
	var state resolver.State
	for _, addr := range s.addrs {
		state.Addresses = append(state.Addresses, resolver.Address{Addr: addr})
	}
	names.InitialState(state)
	cc := dial(t, "both:///servers", append(slices.Clone(s.opts), grpc.WithResolvers(names))...)
	interop.DoPickFirstUnary(ctx, testpb.NewTestServiceClient(cc))
}

// soak returns a config with the sizes of gRPC-Go's interop client.
func soak(s *subject, channel func() (*grpc.ClientConn, func())) interop.SoakTestConfig {
	return interop.SoakTestConfig{
		RequestSize: 271828, ResponseSize: 314159, PerIterationMaxAcceptableLatency: patience, OverallTimeout: patience,
		ServerAddr: s.addrs[0], NumWorkers: 4, Iterations: 24, ChannelForTest: channel,
	}
}

func soakOfCalls(ctx context.Context, _ *testing.T, s *subject) {
	interop.DoSoakTest(ctx, soak(s, func() (*grpc.ClientConn, func()) { return s.cc, func() {} }))
}

func soakOfChannels(ctx context.Context, t *testing.T, s *subject) {
	interop.DoSoakTest(ctx, soak(s, func() (*grpc.ClientConn, func()) {
		cc, err := grpc.NewClient("rdma://"+s.addrs[0], s.opts...)
		assert.NoError(t, err)
		return cc, func() { cc.Close() }
	}))
}

func TestCases(t *testing.T) {
	for _, provider := range testenv.Providers() {
		for _, secure := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, TLS %v", provider, secure), func(t *testing.T) {
				t.Parallel() // some cases wait for timers
				s := &subject{addrs: startServer(t, provider, secure), opts: options(t, provider, secure)}
				s.cc = dial(t, "rdma://"+s.addrs[0], append(slices.Clone(s.opts), grpc.WithDefaultServiceConfig(balancing))...)
				for name, forms := range cases {
					for i, do := range forms {
						t.Run(fmt.Sprintf("%s %d", name, i+1), func(t *testing.T) {
							run(t, func() { do(withPatience(t), t, s) })
						})
					}
				}
				// All of that went over the provider.
				var p peer.Peer
				_, err := testpb.NewTestServiceClient(s.cc).EmptyCall(withPatience(t), new(testpb.Empty), grpc.Peer(&p))
				require.NoError(t, err)
				info, ok := rdmanet.InfoOf(p.Addr)
				require.True(t, ok)
				assert.Equal(t, provider, info.Provider)
				assert.Equal(t, secure, p.AuthInfo.AuthType() == "tls")
				assert.Positive(t, info.LargeReceived+info.LargeSent)
			})
		}
	}
}

// TestNoCaseIsForgotten: every case that gRPC-Go has is in cases or in leftOut.
func TestNoCaseIsForgotten(t *testing.T) {
	dir, err := exec.Command("go", "list", "-f", "{{.Dir}}", "google.golang.org/grpc/interop").Output()
	require.NoError(t, err)
	files, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(dir)), "*.go"))
	require.NoError(t, err)
	var theirs, ours []string
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		require.NoError(t, err)
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && strings.HasPrefix(fn.Name.Name, "Do") {
				theirs = append(theirs, fn.Name.Name)
			}
		}
	}
	for name := range cases {
		ours = append(ours, name)
	}
	assert.ElementsMatch(t, theirs, append(ours, leftOut...))
}
