// Package metrics turns what rdmanet.Transport.Stats returns into a flat list of named
// metrics, for exporters such as those in its folders prometheus and otel. It depends
// on nothing that rdmanet does not depend on.
package metrics

import (
	"iter"
	"maps"
	"slices"

	"github.com/seed202c38ff/fabricnet/rdmanet"
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

// transportMetric and providerMetric are metrics, each with a function that returns its
// value or values. The keys of a map are values of the last label.
type transportMetric struct {
	Desc
	value  func(*rdmanet.TransportStats) uint64
	values func(*rdmanet.TransportStats) map[string]uint64
}

type providerMetric struct {
	Desc
	value  func(*rdmanet.ProviderStats) uint64
	values func(*rdmanet.ProviderStats) map[string]uint64
}

// Descs returns all metrics.
func Descs() iter.Seq[*Desc] {
	return func(yield func(*Desc) bool) {
		for i := range transport {
			if !yield(&transport[i].Desc) {
				return
			}
		}
		for i := range provider {
			if !yield(&provider[i].Desc) {
				return
			}
		}
	}
}

// Samples returns the values of all metrics, in the order of Descs. A metric with
// labels comes once for each combination of their values, of which there may be none.
func Samples(s rdmanet.TransportStats) iter.Seq[Sample] {
	return func(yield func(Sample) bool) {
		for i := range transport {
			m := &transport[i]
			if m.value != nil {
				if !yield(Sample{&m.Desc, nil, m.value(&s)}) {
					return
				}
				continue
			}
			for _, v := range sorted(m.values(&s)) {
				if !yield(Sample{&m.Desc, []string{v.key}, v.n}) {
					return
				}
			}
		}
		for i := range provider {
			for _, name := range slices.Sorted(maps.Keys(s.Providers)) {
				if !provider[i].samples(name, s.Providers[name], yield) {
					return
				}
			}
		}
	}
}

func (m *providerMetric) samples(name string, s rdmanet.ProviderStats, yield func(Sample) bool) bool {
	if m.value != nil {
		return yield(Sample{&m.Desc, []string{name}, m.value(&s)})
	}
	for _, v := range sorted(m.values(&s)) {
		if !yield(Sample{&m.Desc, []string{name, v.key}, v.n}) {
			return false
		}
	}
	return true
}

type entry struct {
	key string
	n   uint64
}

func sorted(m map[string]uint64) (list []entry) {
	for _, k := range slices.Sorted(maps.Keys(m)) {
		list = append(list, entry{k, m[k]})
	}
	return list
}
