package rdmaotel_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/seed202c38ff/fabricnet/metrics/rdmaotel"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// recorder returns a provider whose spans are recorded.
func recorder() (*tracetest.SpanRecorder, trace.TracerProvider) {
	r := tracetest.NewSpanRecorder()
	return r, sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(r))
}

// one returns the attributes of the only span that has ended, after a look at the rest of it.
func one(t *testing.T, r *tracetest.SpanRecorder, name string, kind trace.SpanKind) (sdktrace.ReadOnlySpan, map[attribute.Key]attribute.Value) {
	t.Helper()
	spans := r.Ended()
	require.Len(t, spans, 1)
	assert.Equal(t, name, spans[0].Name())
	assert.Equal(t, kind, spans[0].SpanKind())
	attributes := make(map[attribute.Key]attribute.Value)
	for _, a := range spans[0].Attributes() {
		attributes[a.Key] = a.Value
	}
	return spans[0], attributes
}

func TestSpans(t *testing.T) {
	provider := testenv.Providers()[0]
	tr := new(rdmanet.Transport)
	defer tr.Close()
	lc := rdmanet.ListenConfig{Transport: tr, Providers: []string{provider}}
	accepts, of := recorder()
	inner, err := lc.Listen(t.Context(), "rdma", testenv.Address())
	require.NoError(t, err)
	l := rdmaotel.Tracer{Provider: of}.Listener(inner)
	defer l.Close()

	dials, of := recorder()
	ctx, parent := of.Tracer("test").Start(t.Context(), "parent")
	dial := rdmaotel.Tracer{Provider: of}.DialContext(&rdmanet.Dialer{Transport: tr, Providers: []string{provider}})
	c, err := dial(ctx, "rdma", l.Addr().String())
	require.NoError(t, err)
	defer c.Close()
	const waited = 20 * time.Millisecond
	time.Sleep(waited)
	s, err := l.Accept()
	require.NoError(t, err)
	defer s.Close()
	require.IsType(t, c, s, "conns are passed on as they are")

	span, has := one(t, dials, "rdmanet.dial", trace.SpanKindClient)
	assert.Equal(t, parent.SpanContext().SpanID(), span.Parent().SpanID())
	assert.Equal(t, codes.Unset, span.Status().Code)
	assert.Equal(t, provider, has["fabricnet.provider"].AsString())
	assert.Equal(t, "rdma", has["network.transport"].AsString())
	assert.EqualValues(t, l.Addr().(*net.TCPAddr).AddrPort().Port(), has["server.port"].AsInt64())

	span, has = one(t, accepts, "rdmanet.accept", trace.SpanKindServer)
	assert.False(t, span.Parent().IsValid())
	assert.GreaterOrEqual(t, span.EndTime().Sub(span.StartTime()), waited, "it waited for Accept")
	assert.Equal(t, provider, has["fabricnet.provider"].AsString())
	assert.Equal(t, s.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().String(), has["network.peer.address"].AsString())
}

func TestSpanOfFailure(t *testing.T) {
	dials, of := recorder()
	was := otel.GetTracerProvider()
	defer otel.SetTracerProvider(was)
	otel.SetTracerProvider(of) // that of the zero Tracer
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	_, err = rdmaotel.Tracer{}.DialContext(new(rdmanet.Dialer))(context.Background(), "rdma", l.Addr().String())
	require.Error(t, err)
	span, has := one(t, dials, "rdmanet.dial", trace.SpanKindClient)
	assert.Equal(t, codes.Error, span.Status().Code)
	assert.Equal(t, err.Error(), span.Status().Description)
	assert.Equal(t, "127.0.0.1", has["server.address"].AsString())
}

// TestSpanOfPlainTCP: conns over TCP have spans, too.
func TestSpanOfPlainTCP(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	accepts, of := recorder()
	l := rdmaotel.Tracer{Provider: of}.Listener(inner)
	c, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	defer c.Close()
	s, err := l.Accept()
	require.NoError(t, err)
	defer s.Close()
	_, has := one(t, accepts, "rdmanet.accept", trace.SpanKindServer)
	assert.Equal(t, "tcp", has["network.transport"].AsString())
	assert.NotContains(t, has, attribute.Key("fabricnet.provider"))
	require.NoError(t, l.Close())
	_, err = l.Accept()
	require.ErrorIs(t, err, net.ErrClosed)
	assert.Len(t, accepts.Ended(), 1)
}
