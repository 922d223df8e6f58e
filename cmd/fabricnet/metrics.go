package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/seed202c38ff/fabricnet/internal/dnsrebinding"
	"github.com/seed202c38ff/fabricnet/metrics/rdmaprom"
)

// registry returns a registry with the proxy's metrics, the fabric's, and those of the process.
func (p *proxy) registry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		rdmaprom.NewCollector(nil),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "fabricnet_proxy_conns", Help: "Conns being forwarded.",
		}, func() float64 { return float64(p.counts.open.Load()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "fabricnet_proxy_conns_max", Help: "Bound of conns, 0 for none.",
		}, func() float64 { return float64(p.maxConns) }),
		counter("fabricnet_proxy_sent_bytes_total", "Data of clients that was forwarded.", nil, &p.counts.sent),
		counter("fabricnet_proxy_received_bytes_total", "Data that was forwarded to clients.", nil, &p.counts.received),
	)
	for o := range outcomes {
		r.MustRegister(counter("fabricnet_proxy_conns_ended_total", "Conns that have ended, refused ones included.",
			prometheus.Labels{"why": o.String()}, &p.counts.ended[o]))
	}
	if p.lostLines != nil {
		r.MustRegister(counter("fabricnet_proxy_log_lines_lost_total", "Lines of the log for which its reader was too slow.", nil, p.lostLines))
	}
	return r
}

func counter(name, help string, labels prometheus.Labels, n *atomic.Uint64) prometheus.Collector {
	return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: labels},
		func() float64 { return float64(n.Load()) })
}

// serveMetrics serves /metrics until end is called. It has no TLS, and takes only a loopback
// address unless insecure is set.
func (p *proxy) serveMetrics(ctx context.Context, address string, insecure bool) (end func(), err error) {
	if address, err = literal(ctx, address); err != nil {
		return nil, fmt.Errorf("--metrics: %w", err)
	}
	if !loopback(address) && !insecure {
		return nil, fmt.Errorf("--metrics %v is open to other hosts without TLS: listen at a loopback address, or accept that with --metrics-insecure", address)
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("--metrics: %w", err)
	}
	const patience = 10 * time.Second
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(p.registry(), promhttp.HandlerOpts{MaxRequestsInFlight: 4, Timeout: patience}))
	s := &http.Server{
		Handler: dnsrebinding.Protect(mux), ReadTimeout: patience, WriteTimeout: 2 * patience, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
		ErrorLog: slog.NewLogLogger(p.log.Handler(), slog.LevelDebug),
	}
	p.log.Info("metrics", "at", "http://"+l.Addr().String()+"/metrics")
	go func() {
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			p.log.Error("metrics", "error", err)
		}
	}()
	return func() { s.Close() }, nil
}
