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
