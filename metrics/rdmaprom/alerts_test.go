package rdmaprom_test

import (
	"os"
	"regexp"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/metrics/rdmaprom"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// TestAlertsNameMetrics: the alerts, their tests and docs/operations.md name only metrics that exist.
func TestAlertsNameMetrics(t *testing.T) {
	exported := make(map[string]bool)
	descs := make(chan *prometheus.Desc)
	go func() {
		rdmaprom.NewCollector(new(rdmanet.Transport)).Describe(descs)
		close(descs)
	}()
	inDesc := regexp.MustCompile(`fqName: "(\w+)"`)
	for d := range descs {
		name := inDesc.FindStringSubmatch(d.String())
		require.NotNil(t, name, d.String())
		exported[name[1]] = true
	}
	require.NotEmpty(t, exported)
	for _, file := range []string{"alerts.yaml", "alerts_test.yaml", "../../docs/operations.md"} {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		names := regexp.MustCompile(`\bfabricnet_\w+`).FindAllString(string(text), -1)
		require.NotEmpty(t, names, file)
		for _, name := range names {
			if name == "fabricnet_" || regexp.MustCompile(`^fabricnet_proxy_`).MatchString(name) { // the prefix by itself, and the proxy's own metrics
				continue
			}
			assert.True(t, exported[name], "%s names %s, which is not exported", file, name)
		}
	}
}
