package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/netip"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/urfave/cli/v3"
)

// parseProxy returns what the flags of fabricnet proxy say.
func parseProxy(args []string, w io.Writer) (o *options, err error) {
	c := proxyCommand(func(said *options) error { o = said; return nil })
	c.Writer, c.ErrWriter = w, w
	c.OnUsageError = func(_ context.Context, _ *cli.Command, err error, _ bool) error { return usageError{err} }
	err = c.Run(context.Background(), append([]string{"proxy"}, args...))
	return o, err
}

func TestExitStatus(t *testing.T) {
	for args, want := range map[string]struct {
		status int
		text   string
	}{
		"":                               {2, "a command is missing"},
		"help":                           {0, "fabricnet [global options]"},
		"prxy":                           {2, `no command "prxy"`},
		"proxy -help":                    {0, "--max-conns"},
		"proxy --help":                   {0, "--max-conns"},
		"proxy --nonsense":               {2, "nonsense"},
		"proxy":                          {2, "-listen is missing"},
		"proxy -listen":                  {2, "flag needs an argument"},
		"proxy -listen udp://:1":         {2, "none of tcp, unix and rdma"},
		"proxy -listen tcp://:0 -to x":   {2, "begins with tcp://"},
		"proxy -listen tcp://:0 rdma://": {2, `"rdma://" belongs to no flag`},
		"proxy -listen tcp://127.0.0.1:0 -to tcp://127.0.0.1:1 -metrics 127.0.0.1:x":                   {1, "-metrics"},
		"proxy -listen tcp://127.0.0.1:0 -to tcp://127.0.0.1:1 -metrics 192.0.2.1:0 -insecure":         {1, "-metrics-insecure"},
		"proxy -listen tcp://127.0.0.1:0 -to tcp://127.0.0.1:1 -metrics 192.0.2.1:0 -metrics-insecure": {1, "cannot assign"},
		"proxy -listen tcp://127.0.0.1:0 -to rdma://127.0.0.1:1 -tls-ca /dev/null":                     {1, "-tls-ca: there is no certificate in /dev/null"},
		"proxy -listen rdma://127.0.0.1:0 -to tcp://127.0.0.1:1 -tls-cert x -tls-key x":                {1, "-tls-cert"},
		"proxy -listen unix:///nowhere/socket -to tcp://127.0.0.1:1":                                   {1, "no such file or directory"},
	} {
		var stdout, stderr bytes.Buffer
		assert.Equal(t, want.status, run(strings.Fields(args), &stdout, &stderr), args)
		told := stderr.String()
		if want.status == 0 {
			told = stdout.String()
		}
		assert.Contains(t, told, want.text, args)
	}
}

func TestVersion(t *testing.T) {
	for _, arg := range []string{"version", "-version"} {
		var stdout, stderr bytes.Buffer
		assert.Zero(t, run([]string{arg}, &stdout, &stderr))
		assert.Regexp(t, `^fabricnet .+, libfabric \d+\.\d+\.\d+, go1\.`, stdout.String())
		assert.NotContains(t, stdout.String(), "(core", "in a checkout the core has no version of its own")
		assert.Empty(t, stderr.String())
	}
}

// A mistake that would keep every conn from reaching the target is noticed at the start.
func TestMisconfigured(t *testing.T) {
	for _, providers := range []string{"tpc", "tcp,vrebs"} {
		t.Run(providers, func(t *testing.T) {
			t.Setenv("RDMANET_PROVIDERS", providers)
			var stderr bytes.Buffer
			assert.Equal(t, 1, run(strings.Fields("proxy -listen tcp://127.0.0.1:0 -to rdma://127.0.0.1:1"), io.Discard, &stderr))
			assert.Contains(t, stderr.String(), "-to rdma://127.0.0.1:1")
			assert.Contains(t, stderr.String(), "RDMANET_PROVIDERS: unknown provider")
		})
	}
}

// A proxy that dials other hosts without TLS warns once.
func TestWarnWithoutTLS(t *testing.T) {
	ca := newAuthority(t)
	for args, want := range map[string]int{
		"-to rdma://192.0.2.1:1": 1, "-to rdma://storage7:1": 1, "-to rdma://:1": 0, "-to rdma://127.0.0.1:1": 0, "-to rdma://localhost:1": 0,
		"-to tcp://192.0.2.1:1": 0, "-to rdma://192.0.2.1:1 -tls-ca " + ca.file: 0,
	} {
		_, _, log := startFlags(t, strings.Fields("-listen tcp://127.0.0.1:0 "+args)...)
		assert.Equal(t, want, strings.Count(log.String(), "no TLS towards --to"), args)
	}
}

// Flags that contradict each other are refused, and the error names them.
func TestCheck(t *testing.T) {
	const (
		in   = "-listen rdma://127.0.0.1:0 -to tcp://127.0.0.1:1 "
		out  = "-listen tcp://127.0.0.1:0 -to rdma://127.0.0.1:1 "
		unix = "-listen unix:///s -to tcp://127.0.0.1:1 "
		pair = "-tls-cert c -tls-key k "
	)
	for args, want := range map[string]string{ // part of the error
		in: "", out: "", unix: "", in + pair: "", out + pair: "", out + "-tls-ca c": "", in + pair + "-tls-client-ca c -allow-client a,b": "",
		in + "-allow 10.0.0.0/8,::1 -max-conns 0 -idle-timeout 0 -grace 0": "",

		in + "-tls-cert c":                "go together",
		in + "-tls-key k":                 "go together",
		unix + pair:                       "for the fabric",
		in + "-tls-ca c":                  "-to rdma",
		in + "-tls-client-ca c":           "-tls-cert",
		out + pair + "-tls-client-ca c":   "-listen rdma",
		in + pair + "-allow-client a":     "-tls-client-ca",
		in + "-allow-client a,":           "empty",
		out + "-tls-server-name a":        "-tls-ca",
		unix + "-allow ::1":               "Unix socket",
		in + "-allow 10.0.0.0/33":         "neither a network",
		in + "-allow localhost":           "neither a network",
		in + "-allow ::ffff:10.0.0.0/90":  "write 0.0.0.0/0 for all",
		in + "-max-conns -1":              "-max-conns",
		in + "-max-conns-per-host -1":     "-max-conns-per-host",
		in + "-dial-timeout 0":            "-dial-timeout",
		in + "-idle-timeout -1s":          "-idle-timeout",
		in + "-grace -1s":                 "-grace",
		"-listen rdma://127.0.0.1:0":      "-to is missing",
		"-to rdma://127.0.0.1:0":          "-listen is missing",
		in + "-idle-timeout 5":            "-idle-timeout",
		in + "-tls-client-ca c -tls-ca c": "-to rdma",
	} {
		_, err := parseProxy(strings.Fields(args), io.Discard)
		if want == "" {
			assert.NoError(t, err, args)
		} else {
			assert.ErrorContains(t, err, want, args)
		}
	}
}

// By default no host can take all places.
func TestPerHost(t *testing.T) {
	for args, want := range map[string]int{
		"": 500, "-max-conns 7": 4, "-max-conns 1": 1, "-max-conns 0": 0, "-max-conns-per-host 0": 0, "-max-conns-per-host 20 -max-conns 7": 20,
	} {
		o, err := parseProxy(strings.Fields("-listen tcp://127.0.0.1:0 -to tcp://127.0.0.1:1 "+args), io.Discard)
		require.NoError(t, err)
		assert.Equal(t, want, o.maxPerHost, args)
	}
}

func TestPrefixes(t *testing.T) {
	var p prefixes
	assert.True(t, p.contain(netip.MustParseAddr("192.0.2.1")), "none is all")
	require.NoError(t, p.Set("10.1.2.3/8, 192.0.2.7"))
	require.NoError(t, p.Set("fe80::/10"))
	require.NoError(t, p.Set("::ffff:172.16.0.0/108,::ffff:192.0.2.9"))
	assert.Equal(t, "10.0.0.0/8 192.0.2.7/32 fe80::/10 172.16.0.0/12 192.0.2.9/32", p.String())
	for a, want := range map[string]bool{
		"10.255.0.1": true, "11.0.0.1": false, "192.0.2.7": true, "192.0.2.8": false, "::ffff:10.0.0.1": true,
		"172.31.0.1": true, "::ffff:172.16.0.1": true, "172.32.0.1": false, "192.0.2.9": true,
		"fe80::1%eth0": true, "2001:db8::1": false,
	} {
		assert.Equal(t, want, p.contain(netip.MustParseAddr(a)), a)
	}
}

// Other hosts are let in only with TLS or with -insecure. Where the check passes, listening
// fails: no machine has an address in 192.0.2.0/24 or 2001:db8::/32.
func TestOnlyLoopbackWithoutTLS(t *testing.T) {
	ca := newAuthority(t)
	cert, key := ca.issue(t, "server")
	tls := "-tls-cert " + cert + " -tls-key " + key
	for _, tt := range []struct {
		listen, flags string
		served        bool
	}{
		{"rdma://192.0.2.1:0", "", false},
		{"rdma://[2001:db8::1]:0", "", false},
		{"rdma://:0", "", false},
		{"rdma://0.0.0.0:0", "", false},
		{"rdma://[::]:0", "", false},
		{"rdma://[::ffff:192.0.2.1]:0", "", false},
		{"tcp://:0", "", false},
		{"tcp://192.0.2.1:0", "", false},
		{"tcp://192.0.2.1:0", "-tls-ca " + ca.file, false}, // that is TLS towards the target only
		{"tcp://192.0.2.1:0", tls, false},
		{"rdma://192.0.2.1:0", "-insecure", true},
		{"rdma://192.0.2.1:0", tls, true},
		{"rdma://192.0.2.1:0", tls + " -tls-client-ca " + ca.file, true},
		{"tcp://192.0.2.1:0", "-insecure", true},
	} {
		o, err := parseProxy(strings.Fields("-listen "+tt.listen+" -to rdma://127.0.0.1:1 "+tt.flags), io.Discard)
		require.NoError(t, err)
		_, l, err := o.open(t.Context(), slog.New(slog.DiscardHandler))
		if !assert.Error(t, err, "%v", tt) {
			l.Close()
			continue
		}
		if tt.served {
			assert.ErrorIs(t, err, syscall.EADDRNOTAVAIL, "%v", tt)
		} else {
			assert.ErrorContains(t, err, tt.listen+" is open to other hosts without TLS", "%v", tt)
			assert.ErrorContains(t, err, "-insecure", "%v", tt)
		}
	}
	for _, listen := range []string{"rdma://127.0.0.1:0", "tcp://127.0.0.2:0", "tcp://localhost:0", "rdma://localhost:0"} {
		o, err := parseProxy([]string{"-listen", listen, "-to", "rdma://127.0.0.1:1"}, io.Discard)
		require.NoError(t, err)
		_, l, err := o.open(t.Context(), slog.New(slog.DiscardHandler))
		require.NoError(t, err, listen)
		assert.True(t, loopback(l.Addr().String()), listen)
		require.NoError(t, l.Close())
	}
	p := &proxy{log: slog.New(slog.DiscardHandler)}
	for _, address := range []string{":0", "192.0.2.1:0"} {
		_, err := p.serveMetrics(t.Context(), address, false)
		assert.ErrorContains(t, err, "is open to other hosts without TLS")
	}
	_, err := p.serveMetrics(t.Context(), "192.0.2.1:0", true)
	assert.ErrorIs(t, err, syscall.EADDRNOTAVAIL)
}

// go install refuses modules with replace directives. The replacements in go.work are for
// the versions that go.mod requires.
func TestModule(t *testing.T) {
	var module struct {
		Require []struct{ Path, Version string }
		Replace []any
	}
	edit(t, &module, "mod", "go.mod")
	assert.Empty(t, module.Replace)
	var work struct {
		Replace []struct {
			Old struct{ Path, Version string }
		}
	}
	edit(t, &work, "work", "../../go.work")
	require.NotEmpty(t, work.Replace)
	for _, r := range work.Replace {
		assert.Contains(t, module.Require, struct{ Path, Version string }{r.Old.Path, r.Old.Version})
	}
}

func edit(t *testing.T, into any, what, file string) {
	t.Helper()
	out, err := exec.Command("go", what, "edit", "-json", file).Output()
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(out, into))
}
