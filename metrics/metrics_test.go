package metrics_test

import (
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/metrics"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// number sets every number in a struct to a different value.
func number(v reflect.Value, next *uint64) {
	switch {
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			number(v.Field(i), next)
		}
	case v.CanInt():
		*next++
		v.SetInt(int64(*next))
	case v.CanUint():
		*next++
		v.SetUint(*next)
	}
}

// TestNothingIsMissing: every number in TransportStats is the value of one metric.
func TestNothingIsMissing(t *testing.T) {
	var n uint64
	s := rdmanet.TransportStats{HandshakeFailures: map[string]uint64{"a": 1001}, Fallbacks: map[string]uint64{"b": 1002}, PathFailures: map[string]uint64{"c": 1003}}
	number(reflect.ValueOf(&s).Elem(), &n)
	var p rdmanet.ProviderStats
	number(reflect.ValueOf(&p).Elem(), &n)
	s.Providers = map[string]rdmanet.ProviderStats{"shm": p}
	seen := map[uint64]string{}
	for m := range metrics.Samples(s) {
		require.Empty(t, seen[m.Value], "%s has another one's value", m.Name)
		seen[m.Value] = m.Name
		assert.Len(t, m.Values, len(m.Labels), m.Name)
	}
	for i := uint64(1); i <= n; i++ {
		assert.NotEmpty(t, seen[i], "number %d of the statistics is in no metric", i)
	}
	assert.Len(t, seen, int(n)+3)
}

// fill sets all numbers of a struct to n, or only those that are counters.
func fill(v reflect.Value, n int, gauges bool) {
	switch {
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), n, gauges)
		}
	case v.CanUint():
		v.SetUint(uint64(n))
	case gauges:
		v.SetInt(int64(n))
	}
}

// TestAdd: sums have all numbers, and Ended has all counters.
func TestAdd(t *testing.T) {
	var s, sum, ended metrics.ProviderStats
	fill(reflect.ValueOf(&s).Elem(), 3, true)
	fill(reflect.ValueOf(&sum).Elem(), 6, true)
	fill(reflect.ValueOf(&ended).Elem(), 3, false)
	assert.Equal(t, ended, s.Ended())
	assert.Equal(t, 3, s.Conns, "Ended leaves s as it is")
	s.Add(s)
	assert.Equal(t, sum, s)
}

// TestLabels: labels of a struct's fields are complete, and what rdmanet says a sender waits for.
func TestLabels(t *testing.T) {
	s := metrics.TransportStats{Providers: map[string]metrics.ProviderStats{"shm": {}, "verbs": {}}}
	reasons := map[string]int{}
	for m := range metrics.Samples(s) {
		for _, v := range m.Values {
			assert.NotEmpty(t, v, m.Name)
		}
		if m.Name == "fabricnet.stalls" {
			reasons[m.Values[1]]++
		}
	}
	assert.Equal(t, map[string]int{
		rdmanet.StallWindow: 2, rdmanet.StallRing: 2, rdmanet.StallPeerSlots: 2, rdmanet.StallSendSlots: 2,
		rdmanet.StallStaging: 2, rdmanet.StallQueue: 2, rdmanet.StallMemory: 2,
	}, reasons)
}

func TestDescs(t *testing.T) {
	names := map[string]bool{}
	for d := range metrics.Descs() {
		assert.Regexp(t, `^fabricnet(\.[a-z]+)+$`, d.Name)
		assert.Regexp(t, `^(By|\{[a-z]+\})$`, d.Unit, d.Name)
		assert.True(t, strings.HasSuffix(d.Help, "."), d.Name)
		assert.False(t, names[d.Name], d.Name)
		names[d.Name] = true
	}
}

// TestDocumented: docs/operations.md lists every metric.
func TestDocumented(t *testing.T) {
	text, err := os.ReadFile("../docs/operations.md")
	require.NoError(t, err)
	for d := range metrics.Descs() {
		assert.Contains(t, string(text), "`"+strings.TrimPrefix(d.Name, "fabricnet.")+"`")
	}
}
