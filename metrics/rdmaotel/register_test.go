package rdmaotel_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/seed202c38ff/fabricnet/metrics"
	"github.com/seed202c38ff/fabricnet/metrics/rdmaotel"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// collect returns what a reader sees, by name.
func collect(t *testing.T, reader sdk.Reader) map[string]metricdata.Metrics {
	t.Helper()
	var rm metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(t.Context(), &rm))
	out := map[string]metricdata.Metrics{}
	for _, scope := range rm.ScopeMetrics {
		for _, m := range scope.Metrics {
			out[m.Name] = m
		}
	}
	return out
}

func TestRegister(t *testing.T) {
	const size = 100_000
	tr := new(rdmanet.Transport)
	defer tr.Close()
	reader := sdk.NewManualReader()
	provider := sdk.NewMeterProvider(sdk.WithReader(reader))
	reg, err := rdmaotel.Register(provider.Meter("test"), tr)
	require.NoError(t, err)
	for _, name := range testenv.Providers() {
		exchange(t, tr, name, size)
	}
	got := collect(t, reader)
	stats := tr.Stats()
	for d := range metrics.Descs() {
		if len(d.Labels) == 1 && d.Labels[0] == "reason" || d.Name == "fabricnet.paths.failed" {
			continue // nothing has failed
		}
		m, ok := got[d.Name]
		require.True(t, ok, d.Name)
		assert.Equal(t, d.Unit, m.Unit, d.Name)
		assert.Equal(t, d.Help, m.Description, d.Name)
		sum, ok := m.Data.(metricdata.Sum[int64])
		require.True(t, ok, d.Name)
		assert.Equal(t, d.Counter, sum.IsMonotonic, d.Name)
	}
	sent := map[string]int64{}
	for _, p := range got["fabricnet.sent"].Data.(metricdata.Sum[int64]).DataPoints {
		v, ok := p.Attributes.Value(attribute.Key("fabricnet.provider"))
		require.True(t, ok)
		sent[v.AsString()] = p.Value
	}
	for _, name := range testenv.Providers() {
		assert.EqualValues(t, size, sent[name], name)
		assert.EqualValues(t, size, stats.Providers[name].BytesSent, name)
	}
	assert.Len(t, got["fabricnet.stalls"].Data.(metricdata.Sum[int64]).DataPoints, 7*len(testenv.Providers()))
	require.NoError(t, reg.Unregister())
	assert.Empty(t, collect(t, reader))
}

// exchange sends n bytes over a conn of tr.
func exchange(t *testing.T, tr *rdmanet.Transport, provider string, n int) {
	t.Helper()
	lc := rdmanet.ListenConfig{Transport: tr, Providers: []string{provider}}
	l, err := lc.Listen(t.Context(), "rdma", testenv.Address())
	require.NoError(t, err)
	defer l.Close()
	d := &rdmanet.Dialer{Transport: tr, Providers: []string{provider}}
	c, err := d.Dial("rdma", l.Addr().String())
	require.NoError(t, err)
	s, err := l.Accept()
	require.NoError(t, err)
	sent := make(chan error, 1)
	go func() {
		_, err := c.Write(make([]byte, n))
		sent <- err
	}()
	_, err = io.ReadFull(s, make([]byte, n))
	require.NoError(t, err)
	require.NoError(t, <-sent)
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	require.NoError(t, c.Close())
	require.NoError(t, <-closed)
}

// broken is a meter that makes no instruments.
type broken struct{ metric.Meter }

func (broken) Int64ObservableUpDownCounter(string, ...metric.Int64ObservableUpDownCounterOption) (metric.Int64ObservableUpDownCounter, error) {
	return nil, errors.New("no more instruments")
}

func TestRegisterFails(t *testing.T) {
	_, err := rdmaotel.Register(broken{noop.Meter{}}, nil)
	require.EqualError(t, err, "no more instruments")
}

func ExampleRegister() {
	t := &rdmanet.Transport{MemoryLimit: 64 << 20}
	defer t.Close()
	reader := sdk.NewManualReader() // a service has a periodic one, with an exporter
	provider := sdk.NewMeterProvider(sdk.WithReader(reader))
	if _, err := rdmaotel.Register(provider.Meter("my/service"), t); err != nil {
		log.Fatal(err)
	}

	var rm metricdata.ResourceMetrics
	if err := reader.Collect(context.Background(), &rm); err != nil {
		log.Fatal(err)
	}
	for _, m := range rm.ScopeMetrics[0].Metrics {
		if m.Name == "fabricnet.memory.limit" {
			fmt.Println(m.Name, m.Data.(metricdata.Sum[int64]).DataPoints[0].Value, m.Unit)
		}
	}
	// Output: fabricnet.memory.limit 67108864 By
}
