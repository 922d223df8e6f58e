// Package rdmaprom exports the statistics of an rdmanet.Transport to Prometheus.
//
//	prometheus.MustRegister(rdmaprom.NewCollector(nil)) // of rdmanet.DefaultTransport
//
// To tell several Transports of a process apart, register each through
// prometheus.WrapRegistererWith with a label of your own.
package rdmaprom

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/seed202c38ff/fabricnet/metrics"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

type collector struct {
	t     *rdmanet.Transport
	descs map[*metrics.Desc]*prometheus.Desc
}

// NewCollector returns a collector for t, or for rdmanet.DefaultTransport if t is nil.
// The names of its metrics begin with fabricnet_. The metrics are read whenever they
// are collected, which may be done concurrently.
func NewCollector(t *rdmanet.Transport) prometheus.Collector {
	c := &collector{t: t, descs: make(map[*metrics.Desc]*prometheus.Desc)}
	for d := range metrics.Descs() {
		c.descs[d] = prometheus.NewDesc(name(d), d.Help, d.Labels, nil)
	}
	return c
}

// name returns the name for Prometheus: it contains the unit if that is bytes, and ends in
// _total for counters.
func name(d *metrics.Desc) string {
	s := strings.ReplaceAll(d.Name, ".", "_")
	if d.Unit == "By" {
		s += "_bytes"
	}
	if d.Counter {
		s += "_total"
	}
	return s
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for d := range metrics.Descs() {
		ch <- c.descs[d]
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	for s := range metrics.Samples(c.t.Stats()) {
		kind := prometheus.GaugeValue
		if s.Counter {
			kind = prometheus.CounterValue
		}
		ch <- prometheus.MustNewConstMetric(c.descs[s.Desc], kind, float64(s.Value), s.Values...)
	}
}
