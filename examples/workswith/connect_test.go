package workswith_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/seed202c38ff/fabricnet/httpdialer"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// The messages are of a type that protobuf brings along, so that the example needs no
// generated code. Handlers and clients that are generated take the same HTTP server and client.
type text = wrapperspb.StringValue

const (
	upperProcedure = "/example.Text/Upper"
	echoProcedure  = "/example.Text/Echo"
)

func upper(_ context.Context, r *connect.Request[text]) (*connect.Response[text], error) {
	return connect.NewResponse(wrapperspb.String(strings.ToUpper(r.Msg.GetValue()))), nil
}

// echo says by which network the stream came, and then returns each message.
func echo(ctx context.Context, s *connect.BidiStream[text, text]) error {
	local := ctx.Value(http.LocalAddrContextKey).(net.Addr)
	network := local.Network()
	if _, ok := rdmanet.InfoOf(local); ok {
		network = "rdma"
	}
	if err := s.Send(wrapperspb.String(network)); err != nil {
		return err
	}
	for {
		m, err := s.Receive()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := s.Send(m); err != nil {
			return err
		}
	}
}

// TestConnect: a unary call and a bidirectional stream by HTTP/2 without TLS, with Connect's own
// protocol and with gRPC's.
func TestConnect(t *testing.T) {
	mux := http.NewServeMux()
	mux.Handle(upperProcedure, connect.NewUnaryHandler(upperProcedure, upper))
	mux.Handle(echoProcedure, connect.NewBidiStreamHandler(echoProcedure, echo))
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true) // streams in both directions need HTTP/2
	server := &http.Server{Handler: mux, Protocols: protocols}

	l, err := rdmanet.Listen("rdma", "127.0.0.1:0")
	require.NoError(t, err)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()

	transport := httpdialer.Transport(nil)
	transport.Protocols = protocols
	client := &http.Client{Transport: transport}
	url := "http://" + l.Addr().String()

	for name, options := range map[string][]connect.ClientOption{"connect": nil, "grpc": {connect.WithGRPC()}} {
		t.Run(name, func(t *testing.T) {
			unary := connect.NewClient[text, text](client, url+upperProcedure, options...)
			answer, err := unary.CallUnary(t.Context(), connect.NewRequest(wrapperspb.String("hello")))
			require.NoError(t, err)
			assert.Equal(t, "HELLO", answer.Msg.GetValue())

			stream := connect.NewClient[text, text](client, url+echoProcedure, options...).CallBidiStream(t.Context())
			require.NoError(t, stream.Send(nil)) // the headers, which make the call begin
			assert.Equal(t, "rdma", receive(t, stream))
			for _, line := range []string{"one", strings.Repeat("two", 1<<18), ""} {
				require.NoError(t, stream.Send(wrapperspb.String(line)))
				assert.Equal(t, line, receive(t, stream))
			}
			require.NoError(t, stream.CloseRequest())
			_, err = stream.Receive()
			require.ErrorIs(t, err, io.EOF)
			require.NoError(t, stream.CloseResponse())
		})
	}
	transport.CloseIdleConnections()
	require.NoError(t, server.Shutdown(t.Context()))
	assert.ErrorIs(t, <-served, http.ErrServerClosed)
}

func receive(t *testing.T, s *connect.BidiStreamForClient[text, text]) string {
	t.Helper()
	m, err := s.Receive()
	require.NoError(t, err)
	return m.GetValue()
}
