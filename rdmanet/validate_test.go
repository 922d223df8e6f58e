package rdmanet_test

import (
	"context"
	"crypto/tls"
	"math"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// transportValues are the values at each bound of a Transport's fields, and just beyond it.
var transportValues = []struct {
	field string
	set   func(*rdmanet.Transport)
	wrong string // what the error says; "" for values that are good
}{
	{"MemoryLimit", func(t *rdmanet.Transport) { t.MemoryLimit = -1 }, "-1 bytes is less than 65536 bytes, the least; use 0 for the default, 268435456 bytes"},
	{"MemoryLimit", func(t *rdmanet.Transport) { t.MemoryLimit = 64<<10 - 1 }, "65535 bytes is less than 65536 bytes"},
	{"MemoryLimit", func(t *rdmanet.Transport) { t.MemoryLimit = 64 << 10 }, ""},
	{"MemoryLimit", func(t *rdmanet.Transport) { t.MemoryLimit = math.MaxInt64 }, ""},

	{"HeartbeatInterval", func(t *rdmanet.Transport) { t.HeartbeatInterval = -1 }, "-1ns is less than 1ms, the least; use 0 for the default, 5s"},
	{"HeartbeatInterval", func(t *rdmanet.Transport) { t.HeartbeatInterval = time.Millisecond - 1 }, "999.999µs is less than 1ms"},
	{"HeartbeatInterval", func(t *rdmanet.Transport) { t.HeartbeatInterval = time.Millisecond }, ""},
	{"HeartbeatInterval", func(t *rdmanet.Transport) { t.HeartbeatInterval = 15*time.Second - 1 }, ""},
	{"HeartbeatInterval", func(t *rdmanet.Transport) { t.HeartbeatInterval = 15 * time.Second }, "15s is not below Transport.DeadAfter, 15s"},
	{"HeartbeatInterval", func(t *rdmanet.Transport) { t.HeartbeatInterval = 24*time.Hour + 1 }, "24h0m0.000000001s is more than 24h0m0s, the most"},
	{"HeartbeatInterval", func(t *rdmanet.Transport) { t.HeartbeatInterval, t.DeadAfter = time.Second, time.Second }, "1s is not below Transport.DeadAfter, 1s"},

	{"DeadAfter", func(t *rdmanet.Transport) { t.DeadAfter = -1 }, "-1ns is less than 100ms"},
	{"DeadAfter", func(t *rdmanet.Transport) { t.DeadAfter = 15 }, "15ns is less than 100ms, the least; use 0 for the default, 15s"},
	{"DeadAfter", func(t *rdmanet.Transport) { t.DeadAfter = 100*time.Millisecond - 1 }, "99.999999ms is less than 100ms"},
	{"DeadAfter", func(t *rdmanet.Transport) { t.DeadAfter = 100 * time.Millisecond }, ""},
	{"DeadAfter", func(t *rdmanet.Transport) { t.DeadAfter = 24 * time.Hour }, ""},
	{"DeadAfter", func(t *rdmanet.Transport) { t.DeadAfter = 24*time.Hour + 1 }, "24h0m0.000000001s is more than 24h0m0s, the most"},

	{"IdlePeerTimeout", func(t *rdmanet.Transport) { t.IdlePeerTimeout = -1 }, ""},
	{"IdlePeerTimeout", func(t *rdmanet.Transport) { t.IdlePeerTimeout = math.MinInt64 }, ""},
	{"IdlePeerTimeout", func(t *rdmanet.Transport) { t.IdlePeerTimeout = time.Millisecond - 1 }, "999.999µs is less than 1ms, the least; use 0 for the default, 30s"},
	{"IdlePeerTimeout", func(t *rdmanet.Transport) { t.IdlePeerTimeout = time.Millisecond }, ""},
	{"IdlePeerTimeout", func(t *rdmanet.Transport) { t.IdlePeerTimeout = math.MaxInt64 }, ""},

	{"MaxShmPeers", func(t *rdmanet.Transport) { t.MaxShmPeers = -1 }, "-1 is less than 1, the least; use 0 for the default, 64"},
	{"MaxShmPeers", func(t *rdmanet.Transport) { t.MaxShmPeers = 1 }, ""},
	{"MaxShmPeers", func(t *rdmanet.Transport) { t.MaxShmPeers = math.MaxInt }, ""},

	{"ReceiveWindow", func(t *rdmanet.Transport) { t.ReceiveWindow = -1 }, "-1 bytes is less than 4096 bytes, the least; use 0 for the default, 65536 bytes"},
	{"ReceiveWindow", func(t *rdmanet.Transport) { t.ReceiveWindow = 4<<10 - 1 }, "4095 bytes is less than 4096 bytes"},
	{"ReceiveWindow", func(t *rdmanet.Transport) { t.ReceiveWindow = 4 << 10 }, ""},
	{"ReceiveWindow", func(t *rdmanet.Transport) { t.ReceiveWindow = 16 << 20 }, ""},
	{"ReceiveWindow", func(t *rdmanet.Transport) { t.ReceiveWindow = 16<<20 + 1 }, "16777217 bytes is more than 16777216 bytes, the most"},
	{"ReceiveWindow", func(t *rdmanet.Transport) { t.ReceiveWindow, t.MemoryLimit = 4<<20, 4<<20 }, ""},
	{"ReceiveWindow", func(t *rdmanet.Transport) { t.ReceiveWindow, t.MemoryLimit = 4<<20+1, 4<<20 }, "4194305 bytes do not fit the memory limit of 4194304 bytes"},

	{"LandingRing", func(t *rdmanet.Transport) { t.LandingRing = -1 }, "-1 bytes is less than 65536 bytes, the least; use 0 for the default, 1048576 bytes"},
	{"LandingRing", func(t *rdmanet.Transport) { t.LandingRing = 32 << 10 }, "32768 bytes is less than 65536 bytes"},
	{"LandingRing", func(t *rdmanet.Transport) { t.LandingRing = 64 << 10 }, ""},
	{"LandingRing", func(t *rdmanet.Transport) { t.LandingRing = 96 << 10 }, "98304 is not a power of two; use one from 65536 to 8388608"},
	{"LandingRing", func(t *rdmanet.Transport) { t.LandingRing = 8 << 20 }, ""},
	{"LandingRing", func(t *rdmanet.Transport) { t.LandingRing = 16 << 20 }, "16777216 bytes is more than 8388608 bytes, the most"},
	{"LandingRing", func(t *rdmanet.Transport) { t.LandingRing, t.MemoryLimit = 4<<20, 4<<20 }, ""},
	{"LandingRing", func(t *rdmanet.Transport) { t.LandingRing, t.MemoryLimit = 4<<20, 4<<20-1 }, "4194304 bytes do not fit the memory limit of 4194303 bytes"},

	{"FailureMemory", func(t *rdmanet.Transport) { t.FailureMemory = -1 }, ""},
	{"FailureMemory", func(t *rdmanet.Transport) { t.FailureMemory = time.Millisecond }, ""},
	{"FailureMemory", func(t *rdmanet.Transport) { t.FailureMemory = math.MaxInt64 }, ""},
	{"FailureMemory", func(t *rdmanet.Transport) { t.FailureMemory = time.Millisecond - 1 }, "999.999µs is less than 1ms, the least; use 0 for the default, 5m0s"},
	{"PollTime", func(t *rdmanet.Transport) { t.PollTime = -1 }, ""},
	{"PollTime", func(t *rdmanet.Transport) { t.PollTime = math.MinInt64 }, ""},
	{"PollTime", func(t *rdmanet.Transport) { t.PollTime = time.Microsecond - 1 }, "999ns is less than 1µs, the least; use 0 for the default, 500µs"},
	{"PollTime", func(t *rdmanet.Transport) { t.PollTime = time.Microsecond }, ""},
	{"PollTime", func(t *rdmanet.Transport) { t.PollTime = time.Second }, ""},
	{"PollTime", func(t *rdmanet.Transport) { t.PollTime = time.Second + 1 }, "1.000000001s is more than 1s, the most"},
}

// isConfigError checks an error of Dial or Listen.
func isConfigError(t *testing.T, err error, op, field, problem string) {
	t.Helper()
	require.ErrorIs(t, err, rdmanet.ErrConfig)
	var oe *net.OpError
	require.ErrorAs(t, err, &oe)
	require.Same(t, err, oe, "the outermost")
	assert.Equal(t, op, oe.Op)
	assert.False(t, oe.Timeout())
	assert.ErrorContains(t, err, op+" rdma: rdmanet: "+field+": ")
	assert.ErrorContains(t, err, problem)
}

func TestTransportFields(t *testing.T) {
	network := simfabric.New(simfabric.Config{Personality: simfabric.TCP()})
	for _, tt := range transportValues {
		tr := rdmanet.NewTransport(network)
		tt.set(tr)
		_, dialErr := (&rdmanet.Dialer{Transport: tr}).Dial("rdma", closed(t))
		l, listenErr := (&rdmanet.ListenConfig{Transport: tr}).Listen(t.Context(), "rdma", "127.0.0.1:0")
		_, listErr := tr.Providers(t.Context(), netip.Addr{}, nil)
		if tt.wrong != "" {
			isConfigError(t, dialErr, "dial", "Transport."+tt.field, tt.wrong)
			isConfigError(t, listenErr, "listen", "Transport."+tt.field, tt.wrong)
			assert.ErrorIs(t, listErr, rdmanet.ErrConfig)
		} else {
			assert.ErrorContains(t, dialErr, "connection refused", tt.field)
			assert.NotErrorIs(t, dialErr, rdmanet.ErrConfig, tt.field)
			assert.NoError(t, listErr, tt.field)
			if assert.NoError(t, listenErr, tt.field) {
				assert.NoError(t, l.Close())
			}
		}
		require.NoError(t, tr.Close())
	}
}

func TestDialerFields(t *testing.T) {
	tr := simulated(t, simfabric.TCP())
	for name, tt := range map[string]struct {
		dialer rdmanet.Dialer
		field  string // "" for one that is good
		wrong  string
	}{
		"zero":                   {rdmanet.Dialer{}, "", ""},
		"fallback":               {rdmanet.Dialer{Fallback: rdmanet.FallbackTCP}, "", ""},
		"fallback below":         {rdmanet.Dialer{Fallback: -1}, "Fallback", "there is no Fallback(-1); use FallbackNone or FallbackTCP"},
		"fallback above":         {rdmanet.Dialer{Fallback: rdmanet.FallbackTCP + 1}, "Fallback", "there is no Fallback(2)"},
		"local TCP address":      {rdmanet.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}}, "", ""},
		"other local address":    {rdmanet.Dialer{LocalAddr: &net.UDPAddr{}}, "LocalAddr", "a *net.UDPAddr is no address of a control connection; use a *net.TCPAddr"},
		"providers":              {rdmanet.Dialer{Providers: []string{"shm", "verbs;ofi_rxm/mlx5_0", "sockets", "tcp;ofi_rxm"}}, "", ""},
		"misspelt provider":      {rdmanet.Dialer{Providers: []string{"tcp;ofi_rxm", "tpc"}}, "Providers", `unknown provider "tpc"; known are auto, shm, cxi, efa, `},
		"what is there":          {rdmanet.Dialer{Providers: []string{"tpc"}}, "Providers", `; this machine offers tcp;ofi_rxm`},
		"part of a provider":     {rdmanet.Dialer{Providers: []string{"verbs/mlx5_0"}}, "Providers", `unknown provider "verbs"; `},
		"providers in one entry": {rdmanet.Dialer{Providers: []string{"shm,net"}}, "Providers", `unknown provider "shm,net"; `},
		"empty provider":         {rdmanet.Dialer{Providers: []string{""}}, "Providers", `unknown provider ""; `},
		"no delay":               {rdmanet.Dialer{FallbackDelay: -1}, "", ""},
		"no keep-alive":          {rdmanet.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: -1, Interval: -1, Count: -1}}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			d := tt.dialer
			d.Transport = tr
			_, err := d.Dial("rdma", closed(t))
			if tt.field == "" {
				require.ErrorContains(t, err, "connection refused")
				return
			}
			isConfigError(t, err, "dial", "Dialer."+tt.field, tt.wrong)
		})
	}
}

// A negative Timeout has expired already, as in net.Dialer.
func TestNegativeTimeout(t *testing.T) {
	tr := simulated(t, simfabric.TCP())
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr})
	for _, timeout := range []time.Duration{-1, math.MinInt64} {
		_, want := (&net.Dialer{Timeout: timeout}).Dial("tcp", l.Addr().String())
		_, err := (&rdmanet.Dialer{Transport: tr, Timeout: timeout}).Dial("rdma", l.Addr().String())
		for _, err := range []error{want, err} {
			ne, ok := err.(net.Error)
			require.True(t, ok)
			assert.True(t, ne.Timeout())
		}
		assert.NotErrorIs(t, err, rdmanet.ErrConfig)
	}
}

func TestListenConfigFields(t *testing.T) {
	tr := simulated(t, simfabric.TCP())
	for name, tt := range map[string]struct {
		config rdmanet.ListenConfig
		field  string // "" for one that is good
		wrong  string
	}{
		"zero":             {rdmanet.ListenConfig{}, "", ""},
		"negative backlog": {rdmanet.ListenConfig{Backlog: -1}, "Backlog", "-1 is less than 1, the least; use 0 for the default, 128"},
		"least backlog":    {rdmanet.ListenConfig{Backlog: 1}, "", ""},
		"largest backlog":  {rdmanet.ListenConfig{Backlog: 1 << 20}, "", ""},
		"too many":         {rdmanet.ListenConfig{Backlog: 1<<20 + 1}, "Backlog", "1048577 is more than 1048576, the most"},
		"negative time":    {rdmanet.ListenConfig{HandshakeTimeout: -1}, "HandshakeTimeout", "-1ns is less than 1ms, the least; use 0 for the default, 10s"},
		"no unit":          {rdmanet.ListenConfig{HandshakeTimeout: time.Millisecond - 1}, "HandshakeTimeout", "999.999µs is less than 1ms"},
		"least time":       {rdmanet.ListenConfig{HandshakeTimeout: time.Millisecond}, "", ""},
		"longest time":     {rdmanet.ListenConfig{HandshakeTimeout: math.MaxInt64}, "", ""},
		"providers":        {rdmanet.ListenConfig{Providers: []string{"tcp;ofi_rxm"}}, "", ""},
		"provider":         {rdmanet.ListenConfig{Providers: []string{"tpc"}}, "Providers", `unknown provider "tpc"; known are auto, shm, `},
		"though plain":     {rdmanet.ListenConfig{Providers: []string{"tpc"}, AcceptTCP: true}, "Providers", `unknown provider "tpc"`},
		"no certificate":   {rdmanet.ListenConfig{TLSConfig: new(tls.Config)}, "TLSConfig", "it has no certificate; set Certificates, GetCertificate or GetConfigForClient"},
		"certificates":     {rdmanet.ListenConfig{TLSConfig: &tls.Config{Certificates: make([]tls.Certificate, 1)}}, "", ""},
		"certificate": {rdmanet.ListenConfig{TLSConfig: &tls.Config{
			GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return nil, nil },
		}}, "", ""},
		"configuration": {rdmanet.ListenConfig{TLSConfig: &tls.Config{
			GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return nil, nil },
		}}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			lc := tt.config
			lc.Transport = tr
			l, err := lc.Listen(context.Background(), "rdma", "127.0.0.1:0")
			if tt.field == "" {
				require.NoError(t, err)
				require.NoError(t, l.Close())
				return
			}
			isConfigError(t, err, "listen", "ListenConfig."+tt.field, tt.wrong)
		})
	}
}

// Every number among a Transport's fields is in the table, so that a new one cannot be
// forgotten.
func TestAllFieldsAreChecked(t *testing.T) {
	seen := map[string]bool{}
	for _, tt := range transportValues {
		seen[tt.field] = true
	}
	typ := reflect.TypeFor[rdmanet.Transport]()
	for i := range typ.NumField() {
		if f := typ.Field(i); f.IsExported() && f.Type.Kind() != reflect.Bool {
			assert.True(t, seen[f.Name], f.Name)
		}
	}
}

func TestEnvironment(t *testing.T) {
	for name, tt := range map[string]struct {
		variable, value string
		set             func(*rdmanet.Transport)
		memory          int64
		wrong           string
	}{
		"bytes":            {"RDMANET_MEMORY_LIMIT", "65536", nil, 65536, ""},
		"bytes with a B":   {"RDMANET_MEMORY_LIMIT", "65537B", nil, 65537, ""},
		"KiB":              {"RDMANET_MEMORY_LIMIT", "100KiB", nil, 100 << 10, ""},
		"MiB":              {"RDMANET_MEMORY_LIMIT", "64MiB", nil, 64 << 20, ""},
		"GiB":              {"RDMANET_MEMORY_LIMIT", "2GiB", nil, 2 << 30, ""},
		"TiB":              {"RDMANET_MEMORY_LIMIT", "1TiB", nil, 1 << 40, ""},
		"empty":            {"RDMANET_MEMORY_LIMIT", "", nil, rdmanet.DefaultMemoryLimit, ""},
		"field first":      {"RDMANET_MEMORY_LIMIT", "64MiB", func(t *rdmanet.Transport) { t.MemoryLimit = 1 << 20 }, 1 << 20, ""},
		"field at all":     {"RDMANET_MEMORY_LIMIT", "nonsense", func(t *rdmanet.Transport) { t.MemoryLimit = 1 << 20 }, 1 << 20, ""},
		"zero":             {"RDMANET_MEMORY_LIMIT", "0", nil, rdmanet.DefaultMemoryLimit, ""},
		"too little":       {"RDMANET_MEMORY_LIMIT", "65535", nil, 0, "65535 bytes is less than 65536 bytes"},
		"negative":         {"RDMANET_MEMORY_LIMIT", "-1MiB", nil, 0, "-1048576 bytes is less than"},
		"too much":         {"RDMANET_MEMORY_LIMIT", "8388608TiB", nil, 0, `"8388608TiB" is no number of bytes; use one such as 268435456 or 256MiB`},
		"another unit":     {"RDMANET_MEMORY_LIMIT", "64MB", nil, 0, `"64MB" is no number of bytes`},
		"two units":        {"RDMANET_MEMORY_LIMIT", "64MiBB", nil, 0, `"64MiBB" is no number of bytes`},
		"unit alone":       {"RDMANET_MEMORY_LIMIT", "MiB", nil, 0, `"MiB" is no number of bytes`},
		"fraction":         {"RDMANET_MEMORY_LIMIT", "1.5GiB", nil, 0, `"1.5GiB" is no number of bytes`},
		"contradiction":    {"RDMANET_MEMORY_LIMIT", "64KiB", func(t *rdmanet.Transport) { t.ReceiveWindow = 64<<10 + 1 }, 0, "do not fit the memory limit of 65536 bytes"},
		"poll":             {"RDMANET_POLL_TIME", "50us", nil, rdmanet.DefaultMemoryLimit, ""},
		"no polls":         {"RDMANET_POLL_TIME", "off", nil, rdmanet.DefaultMemoryLimit, ""},
		"poll for ever":    {"RDMANET_POLL_TIME", "2s", nil, 0, "2s is more than 1s, the most"},
		"poll hardly":      {"RDMANET_POLL_TIME", "50ns", nil, 0, "50ns is less than 1µs, the least; use 0 for the default, 500µs"},
		"poll negatively":  {"RDMANET_POLL_TIME", "-1s", nil, 0, `"-1s" is no time; use one such as 50us, or off`},
		"no unit":          {"RDMANET_POLL_TIME", "50", nil, 0, `"50" is no time`},
		"poll as said":     {"RDMANET_POLL_TIME", "nonsense", func(t *rdmanet.Transport) { t.PollTime = -1 }, rdmanet.DefaultMemoryLimit, ""},
		"unknown provider": {"RDMANET_PROVIDERS", "tcp;ofi_rxm tpc", nil, 0, `unknown provider "tpc"; known are auto, shm, `},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(tt.variable, tt.value)
			tr := rdmanet.NewTransport(simfabric.New(simfabric.Config{Personality: simfabric.TCP()}))
			defer tr.Close()
			if tt.set != nil {
				tt.set(tr)
			}
			_, dialErr := (&rdmanet.Dialer{Transport: tr}).Dial("rdma", closed(t))
			l, err := (&rdmanet.ListenConfig{Transport: tr}).Listen(t.Context(), "rdma", "127.0.0.1:0")
			if tt.wrong == "" {
				require.NoError(t, err)
				require.NoError(t, l.Close())
				assert.NotErrorIs(t, dialErr, rdmanet.ErrConfig)
				assert.Equal(t, tt.memory, tr.Stats().Memory.Limit)
				return
			}
			field := tt.variable
			if name == "contradiction" {
				field = "Transport.ReceiveWindow"
			}
			isConfigError(t, err, "listen", field, tt.wrong)
			isConfigError(t, dialErr, "dial", field, tt.wrong)
		})
	}
}

// CloseIdle ends a peer even if idle peers are kept for ever.
func TestKeepIdlePeers(t *testing.T) {
	tr := simulated(t, simfabric.TCP())
	tr.IdlePeerTimeout = -1
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr})
	d := &rdmanet.Dialer{Transport: tr}
	c, s := rdmatest.Meet(t, d, l)
	rdmatest.CloseAll(t, c, s)
	tr.Sweep()
	c, s = rdmatest.Meet(t, d, l)
	assert.True(t, c.Info().Reused)
	rdmatest.CloseAll(t, c, s)
	assert.Equal(t, rdmanet.DefaultIdlePeerTimeout/4, tr.Cleaning(), "of peers that are no longer used")
	tr.CloseIdle()
	rdmatest.Eventually(t, func() bool { return tr.Stats().Peers == 0 }, "CloseIdle ends it")
}

// How much can be written while nobody reads grows with the landing ring.
func TestLandingRing(t *testing.T) {
	for name, tt := range map[string]struct{ ring, least, most int }{
		"smallest": {64 << 10, 64 << 10, 1 << 20},
		"largest":  {8 << 20, 4 << 20, 16 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			tr := simulated(t, simfabric.TCP())
			tr.LandingRing = tt.ring
			l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr})
			c, s := rdmatest.Meet(t, &rdmanet.Dialer{Transport: tr}, l)
			type result struct {
				n   int
				err error
			}
			wrote := make(chan result, 1)
			go func() {
				n, err := c.Write(make([]byte, 32<<20))
				wrote <- result{n, err}
			}()
			written := uint64(0)
			rdmatest.Eventually(t, func() bool { // it stands still, since nobody reads
				before, info := written, c.Info()
				written = info.SmallSent + info.LargeSent
				return find(t, tr, c).WaitsFor == "ring" && written == before && written > uint64(tt.least)
			}, "the ring is full")
			require.NoError(t, c.SetWriteDeadline(time.Now()))
			r := <-wrote
			n, err := r.n, r.err
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			assert.Greater(t, n, tt.least)
			assert.Less(t, n, tt.most)
			require.NoError(t, c.SetLinger(0))
			rdmatest.CloseAll(t, c, s)
		})
	}
}

// Without polling, a wait parks at once. With a long poll time, hardly any wait parks.
func TestPollTime(t *testing.T) {
	const rounds = 20
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2)) // with one processor, nobody polls
	for name, tt := range map[string]struct {
		field    time.Duration
		variable string
		polls    bool
	}{
		"never":            {-1, "", false},
		"never, from out":  {0, "off", false},
		"long":             {time.Second, "", true},
		"long, from out":   {0, "1s", true},
		"the field counts": {-1, "1s", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("RDMANET_POLL_TIME", tt.variable)
			tr := simulated(t, simfabric.TCP())
			tr.PollTime = tt.field
			l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr})
			c, s := rdmatest.Meet(t, &rdmanet.Dialer{Transport: tr}, l)
			stats := func() rdmanet.ProviderStats { return tr.Stats().Providers["tcp;ofi_rxm"] }
			assert.Equal(t, tt.polls, stats().Polling.Endpoints > 0)
			procs := runtime.GOMAXPROCS(1)
			assert.Zero(t, stats().Polling.Endpoints, "with one processor nobody polls")
			assert.Zero(t, tr.Conns()[0].PollTime)
			runtime.GOMAXPROCS(procs)
			before := stats()
			for range rounds {
				parks, read := stats().Parks, make(chan error, 1)
				go func() {
					_, err := s.Read(make([]byte, 1))
					read <- err
				}()
				if tt.polls {
					time.Sleep(6 * rdmanet.DefaultPollTime)
				} else {
					rdmatest.Eventually(t, func() bool { return stats().Parks > parks }, "the reader parks")
				}
				_, err := c.Write([]byte("x"))
				require.NoError(t, err)
				require.NoError(t, <-read)
			}
			after := stats()
			if tt.polls {
				assert.LessOrEqual(t, after.Parks-before.Parks, uint64(rounds/2))
			} else { // a goroutine that polls would do so at least 200 times in each round
				assert.Less(t, after.PollsEmpty-before.PollsEmpty, uint64(100*rounds))
			}
			rdmatest.CloseAll(t, c, s)
		})
	}
}

// sentinels are all errors of this package with which programs compare.
var sentinels = map[string]error{
	"ErrNotRdmanet": rdmanet.ErrNotRdmanet, "ErrVersion": rdmanet.ErrVersion, "ErrNoProvider": rdmanet.ErrNoProvider,
	"ErrUnauthorized": rdmanet.ErrUnauthorized, "ErrTLSRequired": rdmanet.ErrTLSRequired, "ErrTLSMismatch": rdmanet.ErrTLSMismatch, "ErrTLSHandshake": rdmanet.ErrTLSHandshake,
	"ErrMalformed": rdmanet.ErrMalformed, "ErrHandshakeTimeout": rdmanet.ErrHandshakeTimeout, "ErrProviderUnavailable": rdmanet.ErrProviderUnavailable,
	"ErrUnsupported": rdmanet.ErrUnsupported, "ErrMemory": rdmanet.ErrMemory, "ErrClosing": rdmanet.ErrClosing, "ErrBusy": rdmanet.ErrBusy, "ErrTooManyPeers": rdmanet.ErrTooManyPeers, "ErrConfig": rdmanet.ErrConfig,
	"ErrTooManyShmPeers": rdmanet.ErrTooManyShmPeers,
}

// Users search the documents for the text of an error, or for its name.
func TestErrorsAreDocumented(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "docs", "troubleshooting.md"))
	require.NoError(t, err)
	doc := strings.Join(strings.Fields(string(text)), " ")
	for name, err := range sentinels {
		assert.Contains(t, doc, name)
		assert.Contains(t, doc, err.Error(), name)
	}
	source, err := os.ReadFile("errors.go")
	require.NoError(t, err)
	names := regexp.MustCompile(`(?m)^\t(Err\w+) += `).FindAllStringSubmatch(string(source), -1)
	require.NotEmpty(t, names)
	for _, name := range names {
		assert.Contains(t, sentinels, name[1])
	}
}

// Every field and environment variable has a line in the table of settings.
func TestSettingsAreDocumented(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "docs", "tuning.md"))
	require.NoError(t, err)
	for owner, typ := range map[string]reflect.Type{
		"Transport": reflect.TypeFor[rdmanet.Transport](), "Dialer": reflect.TypeFor[rdmanet.Dialer](), "ListenConfig": reflect.TypeFor[rdmanet.ListenConfig](),
	} {
		for i := range typ.NumField() {
			if f := typ.Field(i); f.IsExported() {
				assert.Contains(t, string(text), "| `"+owner+"."+f.Name+"` |")
			}
		}
	}
	for _, name := range []string{"RDMANET_PROVIDERS", "RDMANET_MEMORY_LIMIT", "RDMANET_POLL_TIME"} {
		assert.Contains(t, string(text), "| `"+name+"` |")
	}
}
