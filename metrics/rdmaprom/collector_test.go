package rdmaprom_test

import (
	"fmt"
	"io"
	"log"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/seed202c38ff/fabricnet/metrics/rdmaprom"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// exchange sends n bytes over a conn of tr, over a real provider, and lets one handshake fail.
func exchange(t *testing.T, tr *rdmanet.Transport, provider string, n int) {
	t.Helper()
	lc := rdmanet.ListenConfig{Transport: tr, Providers: []string{provider}, Backlog: 1}
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

	refused := func() uint64 { return tr.Stats().HandshakeFailures["not rdmanet"] }
	before := refused()
	stranger, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	_, err = stranger.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
	require.NoError(t, err)
	_, _ = io.Copy(io.Discard, stranger) // until the listener hangs up, which it does before it counts the failure
	require.NoError(t, stranger.Close())
	require.Eventually(t, func() bool { return refused() == before+1 }, 10*time.Second, time.Millisecond)
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	require.NoError(t, c.Close())
	require.NoError(t, <-closed)
}

func TestCollector(t *testing.T) {
	const size = 100_000
	tr := new(rdmanet.Transport)
	defer tr.Close()
	c := rdmaprom.NewCollector(tr)
	reg := prometheus.NewPedanticRegistry()
	require.NoError(t, reg.Register(c))
	problems, err := testutil.GatherAndLint(reg)
	require.NoError(t, err)
	assert.Empty(t, problems)

	for _, provider := range testenv.Providers() {
		exchange(t, tr, provider, size)
	}
	problems, err = testutil.GatherAndLint(reg)
	require.NoError(t, err)
	assert.Empty(t, problems)

	want := "# HELP fabricnet_sent_bytes_total Data of conns sent.\n# TYPE fabricnet_sent_bytes_total counter\n"
	for _, provider := range testenv.Providers() {
		want += `fabricnet_sent_bytes_total{provider="` + provider + `"} 100000` + "\n"
	}
	assert.NoError(t, testutil.GatherAndCompare(reg, strings.NewReader(want), "fabricnet_sent_bytes_total"))
	assert.NoError(t, testutil.GatherAndCompare(reg, strings.NewReader(`
# HELP fabricnet_handshakes_failed_total Handshakes that came to nothing, on either side.
# TYPE fabricnet_handshakes_failed_total counter
fabricnet_handshakes_failed_total{reason="not rdmanet"} `+strconv.Itoa(len(testenv.Providers()))+`
`), "fabricnet_handshakes_failed_total"))
	n, err := testutil.GatherAndCount(reg, "fabricnet_stalls_total")
	require.NoError(t, err)
	assert.Equal(t, 7*len(testenv.Providers()), n)
	assert.Error(t, reg.Register(rdmaprom.NewCollector(tr)), "the same metrics twice")
}

// TestTwoTransports: labels that the caller adds tell Transports apart.
func TestTwoTransports(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	for _, name := range []string{"front", "back"} {
		tr := new(rdmanet.Transport)
		defer tr.Close()
		labelled := prometheus.WrapRegistererWith(prometheus.Labels{"transport": name}, reg)
		require.NoError(t, labelled.Register(rdmaprom.NewCollector(tr)))
	}
	n, err := testutil.GatherAndCount(reg, "fabricnet_conns")
	require.NoError(t, err)
	assert.Equal(t, 2, n)
}

func ExampleNewCollector() {
	t := &rdmanet.Transport{MemoryLimit: 64 << 20}
	defer t.Close()
	reg := prometheus.NewRegistry()
	reg.MustRegister(rdmaprom.NewCollector(t))
	// promhttp.HandlerFor(reg, promhttp.HandlerOpts{}) serves what reg gathers.

	families, err := reg.Gather()
	if err != nil {
		log.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "fabricnet_memory_limit_bytes" {
			fmt.Println(f.GetName(), int(f.GetMetric()[0].GetGauge().GetValue()))
		}
	}
	// Output: fabricnet_memory_limit_bytes 67108864
}
