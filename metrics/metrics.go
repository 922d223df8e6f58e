// Package metrics lists the metrics of a rdmanet.Transport. For Prometheus use
// metrics/rdmaprom, for OpenTelemetry metrics/rdmaotel, and for expvar rdmadebug/rdmavars. An
// exporter for something else ranges over Samples(transport.Stats()).
package metrics

// A counter is declared in one place, as a field with tags of a struct of this package: the
// engine counts in these structs, package rdmanet adds them up, and exporters read them as
// Samples.

import (
	"iter"
	"reflect"
)

// Desc describes a metric.
type Desc struct {
	// Name contains dots, as OpenTelemetry wants it, and begins with "fabricnet.".
	Name string
	// Unit is as in UCUM: "By" for bytes, otherwise what is counted, in braces.
	Unit string
	Help string
	// Counter says that the value never falls. Other metrics are gauges.
	Counter bool
	// Labels are the keys that belong to a Sample's Values.
	Labels []string
}

// Sample is the value of a metric at one time.
type Sample struct {
	*Desc
	Values []string // of the Labels, in the same order
	Value  uint64
}

// Descs returns all metrics.
func Descs() iter.Seq[*Desc] {
	return func(yield func(*Desc) bool) {
		for i := range all {
			if !yield(&all[i].Desc) {
				return
			}
		}
	}
}

// Samples returns the values of all metrics, in the order of Descs. A metric with
// labels comes once for each combination of their values, of which there may be none.
func Samples(s TransportStats) iter.Seq[Sample] {
	return func(yield func(Sample) bool) {
		v := reflect.ValueOf(s)
		for i := range all {
			if !all[i].samples(v, all[i].index, nil, yield) {
				return
			}
		}
	}
}

// Add adds the numbers of o to those of s.
func (s *ProviderStats) Add(o ProviderStats) {
	add(reflect.ValueOf(s).Elem(), reflect.ValueOf(o))
}

// Ended returns what counts of an endpoint once it has ended: the counters without the gauges.
func (s ProviderStats) Ended() ProviderStats {
	clearGauges(reflect.ValueOf(&s).Elem())
	return s
}
