package rdmanet_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/rpc"
	"net/rpc/jsonrpc"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// RPCService is what the tests call.
type RPCService struct{ started, proceed chan struct{} }

// RPCPair is the argument of Join.
type RPCPair struct{ A, B string }

// Join returns both texts as one.
func (*RPCService) Join(in RPCPair, out *string) error {
	if in.A == "" {
		return errors.New("nothing to join")
	}
	*out = in.A + in.B
	return nil
}

// Wait returns when the test says so.
func (s *RPCService) Wait(struct{}, *string) error {
	close(s.started)
	<-s.proceed
	return nil
}

// TestRPC runs net/rpc with both of its codecs: calls that overlap on one conn, errors
// that arrive as text, and a client that leaves in the middle of a call.
func TestRPC(t *testing.T) {
	for name, codec := range map[string]struct {
		serve  func(*rpc.Server, io.ReadWriteCloser)
		client func(io.ReadWriteCloser) *rpc.Client
	}{
		"gob":  {(*rpc.Server).ServeConn, rpc.NewClient},
		"json": {func(s *rpc.Server, c io.ReadWriteCloser) { s.ServeCodec(jsonrpc.NewServerCodec(c)) }, jsonrpc.NewClient},
	} {
		t.Run(name, func(t *testing.T) {
			overEach(t, func(t *testing.T, l *rdmanet.Listener, d *rdmanet.Dialer) {
				service := &RPCService{make(chan struct{}), make(chan struct{})}
				server := rpc.NewServer()
				require.NoError(t, server.Register(service))
				served := make(chan struct{})
				go func() {
					defer close(served)
					rdmatest.Serve(l, func(c net.Conn) { codec.serve(server, c) })
				}()
				nc, err := d.DialContext(t.Context(), "rdma", l.Addr().String())
				require.NoError(t, err)
				client := codec.client(nc)

				var calls sync.WaitGroup
				for i := range 50 {
					calls.Go(func() {
						in := RPCPair{fmt.Sprint(i), strings.Repeat("é", i*i*10)}
						var out string
						assert.NoError(t, client.Call("RPCService.Join", in, &out))
						assert.Equal(t, in.A+in.B, out, "call %d", i)
					})
				}
				calls.Wait()
				var out string
				assert.Equal(t, rpc.ServerError("nothing to join"), client.Call("RPCService.Join", RPCPair{}, &out))
				assert.ErrorContains(t, client.Call("RPCService.None", RPCPair{}, &out), "can't find method")

				pending := client.Go("RPCService.Wait", struct{}{}, &out, nil)
				<-service.started
				assert.NoError(t, client.Close())
				assert.ErrorIs(t, (<-pending.Done).Error, net.ErrClosed, "as over TCP")
				assert.Equal(t, rpc.ErrShutdown, client.Call("RPCService.Join", RPCPair{"a", "b"}, &out))
				close(service.proceed)
				assert.NoError(t, l.Close())
				<-served
			})
		})
	}
}
