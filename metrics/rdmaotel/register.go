// Package rdmaotel exports the statistics of an rdmanet.Transport to OpenTelemetry, and makes
// spans of dials and accepts.
//
//	_, err := rdmaotel.Register(otel.Meter("my/service"), nil) // of rdmanet.DefaultTransport
//	dial := rdmaotel.Tracer{}.DialContext(new(rdmanet.Dialer))
package rdmaotel

import (
	"context"
	"math"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/seed202c38ff/fabricnet/metrics"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// Register creates observable instruments for t, or for rdmanet.DefaultTransport if t
// is nil. They are observed whenever the meter's readers collect. Their names begin
// with "fabricnet." and their attributes are fabricnet.provider, fabricnet.reason and
// fabricnet.path. Unregister of the registration ends that. Several Transports need
// meters with different scopes.
func Register(meter metric.Meter, t *rdmanet.Transport) (metric.Registration, error) {
	instruments := make(map[*metrics.Desc]metric.Int64Observable)
	var all []metric.Observable
	for d := range metrics.Descs() {
		i, err := instrument(meter, d)
		if err != nil {
			return nil, err
		}
		instruments[d] = i
		all = append(all, i)
	}
	return meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		for s := range metrics.Samples(t.Stats()) {
			o.ObserveInt64(instruments[s.Desc], int64(min(s.Value, math.MaxInt64)), metric.WithAttributes(attributes(s)...))
		}
		return nil
	}, all...)
}

func instrument(meter metric.Meter, d *metrics.Desc) (metric.Int64Observable, error) {
	if d.Counter {
		return meter.Int64ObservableCounter(d.Name, metric.WithDescription(d.Help), metric.WithUnit(d.Unit))
	}
	return meter.Int64ObservableUpDownCounter(d.Name, metric.WithDescription(d.Help), metric.WithUnit(d.Unit))
}

func attributes(s metrics.Sample) (list []attribute.KeyValue) {
	for i, key := range s.Labels {
		list = append(list, attribute.String("fabricnet."+key, s.Values[i]))
	}
	return list
}
