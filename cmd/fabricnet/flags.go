package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/urfave/cli/v3"
)

// options is what the flags of fabricnet proxy say.
type options struct {
	from, to    endpoint
	tls         tlsFiles
	allow       prefixes
	allowClient names
	insecure    bool
	metrics     string
	// metricsInsecure is insecure for metrics.
	metricsInsecure bool

	limits
}

// limits bound what conns may take. 0 is no bound, except for dial and grace.
type limits struct {
	maxConns, maxPerHost   int
	dial, idle, grace      time.Duration
	acceptProxy, sendProxy bool
}

// value makes a flag.Value of the standard library's one of package cli.
type value struct{ flag.Value }

// Get implements flag.Getter.
func (v value) Get() any { return v.Value }

// tlsFlags are the flags of commands that serve or dial.
func tlsFlags(t *tlsFiles) []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "tls-cert", Destination: &t.cert, Usage: "the certificate on the fabric, a PEM `file`: the server's or the client's"},
		&cli.StringFlag{Name: "tls-key", Destination: &t.key, Usage: "its key, a PEM `file`"},
		&cli.StringFlag{Name: "tls-ca", Destination: &t.ca, Usage: "when dialing, use TLS: who signs servers, a PEM `file`; the system's with --tls-cert alone"},
		&cli.StringFlag{Name: "tls-client-ca", Destination: &t.clientCA, Usage: "when serving, demand a certificate from clients: who signs them, a PEM `file`"},
		&cli.StringFlag{Name: "tls-server-name", Destination: &t.serverName, Usage: "when dialing: the `name` in the server's certificate, if it is not the dialed host"},
	}
}

// perHostFlag is a flag beside --max-conns.
func perHostFlag(prefix string) cli.Flag {
	return &cli.IntFlag{Name: "max-conns-per-host", DefaultText: "half of --max-conns",
		Usage: prefix + "the same for those of one IPv4 address, or one /64 of IPv6, other than this host's loopback; 0: no bound of their own"}
}

// perHost returns what perHostFlag says, so that by default no host can take all places.
func perHost(c *cli.Command) int {
	if c.IsSet("max-conns-per-host") {
		return c.Int("max-conns-per-host")
	}
	return (c.Int("max-conns") + 1) / 2
}

// proxyCommand calls run with what its flags say.
func proxyCommand(run func(*options) error) *cli.Command {
	o := new(options)
	return &cli.Command{
		Name: "proxy", Usage: "connect TCP or Unix sockets to a fabric, and a fabric to them",
		Flags: append([]cli.Flag{
			&cli.GenericFlag{Name: "listen", Value: value{&o.from}, Usage: "take conns at this `endpoint`: tcp://host:port, unix://path or rdma://host:port"},
			&cli.GenericFlag{Name: "to", Value: value{&o.to}, Usage: "connect them to this `endpoint`, of the same form"},
			&cli.DurationFlag{Name: "dial-timeout", Value: 10 * time.Second, Destination: &o.dial, Usage: "how long connecting may take, and a client's PROXY header"},
			&cli.DurationFlag{Name: "idle-timeout", Value: time.Hour, Destination: &o.idle, Usage: "reset conns that carry nothing in either direction for so long; 0: never"},
			&cli.DurationFlag{Name: "grace", Value: 10 * time.Second, Destination: &o.grace, Usage: "how long conns may go on after SIGINT or SIGTERM"},
			&cli.IntFlag{Name: "max-conns", Value: 1000, Destination: &o.maxConns, Usage: "reset clients that come while there are so many conns; 0: no bound"},
			perHostFlag(""),
			&cli.GenericFlag{Name: "allow", Value: value{&o.allow}, Usage: "take clients from these `networks` only: 10.0.0.0/8,192.0.2.7"},
			&cli.BoolFlag{Name: "insecure", Destination: &o.insecure, Usage: "--listen at addresses other than loopback without TLS"},
			&cli.GenericFlag{Name: "allow-client", Value: value{&o.allowClient}, Usage: "take clients with these `names` in their certificates only, as DNS name, URI or common name, with commas"},
			&cli.BoolFlag{Name: "accept-proxy", Destination: &o.acceptProxy, Usage: "each client begins with a header of the PROXY protocol"},
			&cli.BoolFlag{Name: "send-proxy", Destination: &o.sendProxy, Usage: "begin with a header of the PROXY protocol, version 2, towards --to"},
			&cli.StringFlag{Name: "metrics", Destination: &o.metrics, Usage: "serve /metrics for Prometheus at this `host:port`"},
			&cli.BoolFlag{Name: "metrics-insecure", Destination: &o.metricsInsecure, Usage: "serve /metrics at addresses other than loopback, to whoever asks"},
		}, tlsFlags(&o.tls)...),
		Action: func(_ context.Context, c *cli.Command) error {
			if err := noArguments(c); err != nil {
				return err
			}
			o.maxPerHost = perHost(c)
			if err := o.check(); err != nil {
				return usageError{fmt.Errorf("proxy: %w", err)}
			}
			if err := run(o); err != nil {
				return fmt.Errorf("proxy: %w", err)
			}
			return nil
		},
	}
}

// check finds flags that are missing or contradict each other.
func (o *options) check() error {
	serves, dials := o.from.network == "rdma", o.to.network == "rdma"
	for _, rule := range []struct {
		broken bool
		text   string
	}{
		{o.from.network == "", "--listen is missing: say where conns come from, as --listen tcp://localhost:8080 does"},
		{o.to.network == "", "--to is missing: say where conns go, as --to rdma://host:9000 does"},
		{o.maxConns < 0, "--max-conns must not be negative"},
		{o.maxPerHost < 0, "--max-conns-per-host must not be negative"},
		{o.dial <= 0, "--dial-timeout must be more than 0"},
		{o.idle < 0, "--idle-timeout must not be negative"},
		{o.grace < 0, "--grace must not be negative"},
		{len(o.allow) > 0 && o.from.network == "unix", "--allow needs addresses, which the clients of a Unix socket do not have: restrict who may open its folder"},
		{o.tls.cert != "" && o.tls.key != "" && !serves && !dials, "--tls-cert is for the fabric: neither --listen nor --to is rdma://"},
		{len(o.allowClient) > 0 && o.tls.clientCA == "", "--allow-client needs --tls-client-ca, without which clients have no certificates"},
	} {
		if rule.broken {
			return errors.New(rule.text)
		}
	}
	return o.tls.check(serves, dials, "--listen rdma://", "--to rdma://")
}

// prefixes is a flag with a list of networks, one of which a conn must come from. An empty list
// stands for all.
type prefixes []netip.Prefix

func (p *prefixes) String() string { return strings.Trim(fmt.Sprint(*p), "[]") }

// Set takes networks and single addresses, separated by commas.
func (p *prefixes) Set(text string) error {
	for word := range strings.SplitSeq(text, ",") {
		word = strings.TrimSpace(word)
		network, err := netip.ParsePrefix(word)
		if err != nil {
			a, err := netip.ParseAddr(word)
			if err != nil || a.Zone() != "" {
				return fmt.Errorf("%q is neither a network, as 10.0.0.0/8, nor an address", word)
			}
			network = netip.PrefixFrom(a, a.BitLen())
		}
		// IPv4 addresses in IPv6 form are compared as IPv4.
		if a := network.Addr(); a.Is4In6() {
			if network.Bits() < 96 {
				return fmt.Errorf("%q is no network of IPv4 addresses: write 0.0.0.0/0 for all of them, ::/0 for all of IPv6", word)
			}
			network = netip.PrefixFrom(a.Unmap(), network.Bits()-96)
		}
		*p = append(*p, network.Masked())
	}
	return nil
}

func (p prefixes) contain(a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	for _, network := range p {
		if network.Contains(a) {
			return true
		}
	}
	return len(p) == 0
}

// names is a flag with a list of words, separated by commas.
type names []string

func (n *names) String() string { return strings.Join(*n, ",") }

// Set adds to the names of earlier flags.
func (n *names) Set(text string) error {
	for word := range strings.SplitSeq(text, ",") {
		word = strings.TrimSpace(word)
		if word == "" {
			return errors.New("a name is empty")
		}
		*n = append(*n, word)
	}
	return nil
}
