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

	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// Service is what the tests call.
type Service struct{ started, proceed chan struct{} }

// Pair is what Join is called with.
type Pair struct{ A, B string }

// Join returns both texts as one.
func (*Service) Join(in Pair, out *string) error {
	if in.A == "" {
		return errors.New("nothing to join")
	}
	*out = in.A + in.B
	return nil
}

// Wait returns when the test says so.
func (s *Service) Wait(struct{}, *string) error {
	close(s.started)
	<-s.proceed
	return nil
}

// TestRPC runs net/rpc with both of its codecs: calls that overlap on one conn, errors
// as texts, and a client that leaves in the middle of a call.
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
				service := &Service{make(chan struct{}), make(chan struct{})}
				server := rpc.NewServer()
				require.NoError(t, server.Register(service))
				served := make(chan struct{})
				go func() {
					defer close(served)
					acceptAll(l, func(c net.Conn) { codec.serve(server, c) })
				}()
				nc, err := d.DialContext(t.Context(), "rdma", l.Addr().String())
				require.NoError(t, err)
				client := codec.client(nc)

				var calls sync.WaitGroup
				for i := range 50 {
					calls.Go(func() {
						in := Pair{fmt.Sprint(i), strings.Repeat("é", i*i*10)}
						var out string
						assert.NoError(t, client.Call("Service.Join", in, &out))
						assert.True(t, in.A+in.B == out, "call %d: %d bytes", i, len(out))
					})
				}
				calls.Wait()
				var out string
				assert.Equal(t, rpc.ServerError("nothing to join"), client.Call("Service.Join", Pair{}, &out))
				assert.ErrorContains(t, client.Call("Service.None", Pair{}, &out), "can't find method")

				pending := client.Go("Service.Wait", struct{}{}, &out, nil)
				<-service.started
				assert.NoError(t, client.Close())
				assert.ErrorIs(t, (<-pending.Done).Error, net.ErrClosed, "as over TCP")
				assert.Equal(t, rpc.ErrShutdown, client.Call("Service.Join", Pair{"a", "b"}, &out))
				close(service.proceed)
				assert.NoError(t, l.Close())
				<-served
			})
		})
	}
}

// acceptAll serves conns until the listener is closed and all are done.
func acceptAll(l net.Listener, serve func(net.Conn)) {
	var conns sync.WaitGroup
	defer conns.Wait()
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		conns.Go(func() { serve(c) })
	}
}
