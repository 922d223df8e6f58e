package rdmaotel

import (
	"context"
	"net"
	"strconv"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// scope names this package to OpenTelemetry.
const scope = "github.com/seed202c38ff/fabricnet/metrics/rdmaotel"

// Tracer makes spans of dials and accepts. The zero Tracer uses the global TracerProvider. Its
// methods may be called concurrently. Spans have the attributes server.address and server.port
// (dials), network.peer.address and network.peer.port, network.transport, which is "rdma" or
// "tcp", and of conns over a fabric fabricnet.provider and fabricnet.reused. A dial or accept
// that fails has an error status with the error's text.
type Tracer struct {
	// Provider makes the tracer, nil for otel.GetTracerProvider() at the time of each call.
	Provider trace.TracerProvider
}

func (t Tracer) tracer() trace.Tracer {
	p := t.Provider
	if p == nil {
		p = otel.GetTracerProvider()
	}
	return p.Tracer(scope)
}

// DialContext returns d.DialContext with a span "rdmanet.dial" around each call, a child of the
// span in its context. The conns are d's own.
func (t Tracer) DialContext(d *rdmanet.Dialer) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		ctx, span := t.tracer().Start(ctx, "rdmanet.dial", trace.WithSpanKind(trace.SpanKindClient),
			trace.WithAttributes(place("server", address)...))
		defer span.End()
		c, err := d.DialContext(ctx, network, address)
		if err != nil {
			span.RecordError(err)
			span.SetStatus(codes.Error, err.Error())
			return nil, err
		}
		span.SetAttributes(about(c)...)
		return c, nil
	}
}

// Listener returns l with a span "rdmanet.accept" for each conn that Accept returns: from when
// the conn came to the listener until then, which is how long it has waited in the backlog. It
// has no parent. A conn over plain TCP has a span without a duration. The conns are l's own.
func (t Tracer) Listener(l net.Listener) net.Listener { return &listener{l, t} }

type listener struct {
	net.Listener
	tracer Tracer
}

func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err // of the listener, and of no conn
	}
	options := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindServer), trace.WithNewRoot(), trace.WithAttributes(about(c)...)}
	if info, ok := rdmanet.InfoOf(c.RemoteAddr()); ok {
		options = append(options, trace.WithTimestamp(info.Opened))
	}
	_, span := l.tracer.tracer().Start(context.Background(), "rdmanet.accept", options...)
	span.End()
	return c, nil
}

// place returns the attributes of a host and port, of which an address may have no port.
func place(name, address string) []attribute.KeyValue {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return []attribute.KeyValue{attribute.String(name+".address", address)}
	}
	list := []attribute.KeyValue{attribute.String(name+".address", host)}
	if n, err := strconv.Atoi(port); err == nil {
		list = append(list, attribute.Int(name+".port", n))
	}
	return list
}

// about returns the attributes of a conn.
func about(c net.Conn) []attribute.KeyValue {
	list := place("network.peer", c.RemoteAddr().String())
	transport := "tcp"
	if info, ok := rdmanet.InfoOf(c.RemoteAddr()); ok && info.Provider != "" {
		transport = "rdma"
		list = append(list, attribute.String("fabricnet.provider", info.Provider), attribute.Bool("fabricnet.reused", info.Reused))
	}
	return append(list, attribute.String("network.transport", transport))
}
