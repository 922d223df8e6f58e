package interop

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	orcapb "github.com/cncf/xds/go/xds/data/orca/v3"
	orcaservice "github.com/cncf/xds/go/xds/service/orca/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/interop"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/orca"

	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// serveAlone runs interop servers at two addresses until standard input ends.
func serveAlone(provider string, secure bool) error {
	var addrs []any
	for range 2 {
		lc := rdmanet.ListenConfig{Providers: []string{provider}}
		l, err := lc.Listen(context.Background(), "rdma", testenv.Address())
		if err != nil {
			return err
		}
		s := newServer(l.Addr(), secure)
		defer s.Stop()
		go func() {
			if err := s.Serve(l); err != nil {
				fmt.Fprintln(os.Stderr, "server:", err)
				os.Exit(1)
			}
		}()
		addrs = append(addrs, l.Addr())
	}
	fmt.Println(addrs...)
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

// newServer returns a server with the services of gRPC-Go's interop server program.
func newServer(addr net.Addr, secure bool) *grpc.Server {
	opts := []grpc.ServerOption{orca.CallMetricsServerOption(nil)}
	if secure {
		server, _ := certificates()
		opts = append(opts, grpc.Creds(credentials.NewTLS(server)))
	}
	s := grpc.NewServer(opts...)
	metrics := orca.NewServerMetricsRecorder()
	orcaservice.RegisterOpenRcaServiceServer(s, loads{from: metrics})
	testpb.RegisterTestServiceServer(s, named{
		TestServiceServer: interop.NewTestServer(interop.NewTestServerOptions{MetricsRecorder: metrics}),
		id:                addr.String(),
	})
	return s
}

// named is a test server that says which one it is, as pick_first_unary requires.
type named struct {
	testpb.TestServiceServer
	id string
}

func (n named) UnaryCall(ctx context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	out, err := n.TestServiceServer.UnaryCall(ctx, in)
	if err == nil && in.GetFillServerId() {
		out.ServerId = n.id
	}
	return out, err
}

// loads is the ORCA service with the interval that the client asks for. gRPC-Go's
// own has a minimum of half a minute, which only gRPC-Go itself can lower. orca_oob does not
// wait that long.
type loads struct {
	orcaservice.UnimplementedOpenRcaServiceServer
	from orca.ServerMetricsProvider
}

func (l loads) StreamCoreMetrics(in *orcaservice.OrcaLoadReportRequest, s grpc.ServerStreamingServer[orcapb.OrcaLoadReport]) error {
	every := time.NewTicker(max(in.GetReportInterval().AsDuration(), time.Millisecond))
	defer every.Stop()
	for {
		m := l.from.ServerMetrics()
		// Values that were not set are -1.
		report := &orcapb.OrcaLoadReport{
			CpuUtilization: max(m.CPUUtilization, 0), MemUtilization: max(m.MemUtilization, 0), Utilization: m.Utilization,
		}
		if err := s.Send(report); err != nil {
			return err
		}
		select {
		case <-s.Context().Done():
			return s.Context().Err()
		case <-every.C:
		}
	}
}
