package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"time"
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
	maxConns               int
	dial, idle, grace      time.Duration
	acceptProxy, sendProxy bool
}

// parseProxy parses the flags. If they ask for help, it writes that to w.
func parseProxy(args []string, w io.Writer) (*options, error) {
	o := new(options)
	f := flag.NewFlagSet("fabricnet proxy", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.Var(&o.from, "listen", "take conns at this `endpoint`: tcp://host:port, unix://path or rdma://host:port")
	f.Var(&o.to, "to", "connect them to this `endpoint`, of the same form")
	f.DurationVar(&o.dial, "dial-timeout", 10*time.Second, "how long connecting may take, and a client's PROXY header")
	f.DurationVar(&o.idle, "idle-timeout", time.Hour, "reset conns that carry nothing in either direction for so long; 0: never")
	f.DurationVar(&o.grace, "grace", 10*time.Second, "how long conns may go on after SIGINT or SIGTERM")
	f.IntVar(&o.maxConns, "max-conns", 1000, "reset clients that come while there are so many conns; 0: no bound")
	f.Var(&o.allow, "allow", "take clients from these `networks` only: 10.0.0.0/8,192.0.2.7")
	f.BoolVar(&o.insecure, "insecure", false, "-listen at addresses other than loopback without TLS")
	f.StringVar(&o.tls.cert, "tls-cert", "", "the certificate on the fabric, a PEM `file`: the server's with -listen rdma, the client's with -to rdma")
	f.StringVar(&o.tls.key, "tls-key", "", "its key, a PEM `file`")
	f.StringVar(&o.tls.ca, "tls-ca", "", "with -to rdma, use TLS: who signs servers, a PEM `file`; the system's with -tls-cert alone")
	f.StringVar(&o.tls.clientCA, "tls-client-ca", "", "with -listen rdma, demand a certificate from clients: who signs them, a PEM `file`")
	f.StringVar(&o.tls.serverName, "tls-server-name", "", "with -to rdma: the `name` in the server's certificate, if it is not the dialed host")
	f.Var(&o.allowClient, "allow-client", "take clients with these `names` in their certificates only, as DNS name, URI or common name, with commas")
	f.BoolVar(&o.acceptProxy, "accept-proxy", false, "each client begins with a header of the PROXY protocol")
	f.BoolVar(&o.sendProxy, "send-proxy", false, "begin with a header of the PROXY protocol, version 2, towards -to")
	f.StringVar(&o.metrics, "metrics", "", "serve /metrics for Prometheus at this `host:port`")
	f.BoolVar(&o.metricsInsecure, "metrics-insecure", false, "serve /metrics at addresses other than loopback, to whoever asks")
	err := f.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		f.SetOutput(w)
		f.Usage()
	}
	if err != nil {
		return nil, err
	}
	if f.NArg() > 0 {
		return nil, fmt.Errorf("%q belongs to no flag; see -help", f.Arg(0))
	}
	return o, o.check()
}

// check finds flags that are missing or contradict each other.
func (o *options) check() error {
	serves, dials := o.from.network == "rdma", o.to.network == "rdma"
	for _, rule := range []struct {
		broken bool
		text   string
	}{
		{o.from.network == "", "-listen is missing: say where conns come from, as -listen tcp://localhost:8080 does"},
		{o.to.network == "", "-to is missing: say where conns go, as -to rdma://host:9000 does"},
		{o.maxConns < 0, "-max-conns must not be negative"},
		{o.dial <= 0, "-dial-timeout must be more than 0"},
		{o.idle < 0, "-idle-timeout must not be negative"},
		{o.grace < 0, "-grace must not be negative"},
		{len(o.allow) > 0 && o.from.network == "unix", "-allow needs addresses, which the clients of a Unix socket do not have: restrict who may open its folder"},
		{(o.tls.cert == "") != (o.tls.key == ""), "-tls-cert and -tls-key go together"},
		{o.tls.cert != "" && !serves && !dials, "-tls-cert is for the fabric: neither -listen nor -to is rdma://"},
		{(o.tls.ca != "" || o.tls.serverName != "") && !dials, "-tls-ca and -tls-server-name are for -to rdma://"},
		{o.tls.serverName != "" && !o.tls.dials(), "-tls-server-name needs -tls-ca or -tls-cert"},
		{o.tls.clientCA != "" && (!serves || o.tls.cert == ""), "-tls-client-ca needs -listen rdma://, -tls-cert and -tls-key"},
		{len(o.allowClient) > 0 && o.tls.clientCA == "", "-allow-client needs -tls-client-ca, without which clients have no certificates"},
	} {
		if rule.broken {
			return errors.New(rule.text)
		}
	}
	return nil
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
