package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"time"

	"github.com/seed202c38ff/fabricnet/bench/internal/load"
	"github.com/seed202c38ff/fabricnet/bench/internal/report"
	"github.com/seed202c38ff/fabricnet/bench/internal/workload"
)

// controlPort is where -s waits for -c, unless -port says otherwise.
const controlPort = 18516

// choices are the flags that say what is measured, as they were given.
type choices struct {
	targets, verbs, demo, oneCore, busy             bool
	modes, sizes, providers, inflight, conns, peers string
}

// parse reads the flags.
func parse(args []string) (plan, error) {
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	var p plan
	var c choices
	p.workFlags(f, &c)
	p.outputFlags(f)
	p.remoteFlags(f)
	if err := f.Parse(args); err != nil {
		return plan{}, err
	}
	if f.NArg() > 0 {
		return plan{}, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	if p.rounds < 0 || p.time < 0 {
		return plan{}, errors.New("-rounds and -time must be positive")
	}
	p.providers = list(c.providers)
	if err := p.checkModes(c.targets || c.verbs, c.oneCore || c.busy); err != nil {
		return plan{}, err
	}
	return p.choose(c)
}

// choose makes the plan one of the choices.
func (p plan) choose(c choices) (plan, error) {
	switch {
	case p.serve || p.from != "":
		return p, nil
	case c.demo && c.targets || c.demo && c.verbs || c.targets && c.verbs:
		return plan{}, errors.New("-demo, -targets and -verbs exclude each other")
	case p.enforce && !c.targets && !c.verbs:
		return plan{}, errors.New("-enforce needs targets: -targets or -verbs")
	case c.targets:
		p.targets = report.LoopbackTargets
		return p.withDefaults(5, 400*time.Millisecond), nil
	case c.verbs:
		p.targets, p.providers = report.VerbsTargets, []string{workload.Verbs.Provider}
		return p.withDefaults(5, time.Second), nil
	case c.demo:
		p.works = demoWorks()
		return p.withDefaults(3, 250*time.Millisecond), nil
	}
	sizes, err1 := numbers(c.sizes, 1, load.MaxSize)
	calls, err2 := numbers(c.inflight, 1, load.MaxInflight)
	conns, err3 := numbers(c.conns, 1, load.MaxConns)
	idle, err4 := numbers(c.peers, 0, maxPeers)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return plan{}, err
	}
	var err error
	p.works, err = p.worksOf(list(c.modes), sizes, calls, conns, idle)
	for i := range p.works {
		p.works[i].OneCore, p.works[i].Load = c.oneCore, c.busy
	}
	return p.withDefaults(5, time.Second), err
}

// workFlags defines the flags that say what is measured, and for how long.
func (p *plan) workFlags(f *flag.FlagSet, c *choices) {
	f.BoolVar(&c.targets, "targets", false, "measure what the project's targets need, and judge it; the same flags are ignored")
	f.BoolVar(&c.verbs, "verbs", false, "like -targets, but for an RDMA device at -host, compared with rsockets, too (rstream)")
	f.BoolVar(&c.demo, "demo", false, "measure a choice, in a minute and a half; -modes, -sizes, -inflight, -conns, -peers, -onecore and -busy are ignored")
	f.StringVar(&c.modes, "modes", "lat,bw,rpc,conn", "kinds of work: lat (round trip), bw (one way), zc (one way by the zero-copy calls, verified), rpc (gRPC unary), http (GETs over HTTP/1.1: of 64 bytes, and of 1G), conn (dial, echo a byte, close), first (conn between two processes), idle, peers (many client processes with a conn each)")
	f.StringVar(&c.sizes, "sizes", "64,512,4K,32K,64K,256K,1M,4M", "bytes per operation, for lat, bw, zc and rpc")
	f.StringVar(&c.providers, "providers", "all", "libfabric providers, such as shm,tcp;ofi_rxm, or all that rdmanet knows and this machine offers at -host")
	f.StringVar(&c.inflight, "inflight", "1,64", "calls in flight on each conn, for rpc")
	f.StringVar(&c.conns, "conns", "1", "conns used at once")
	f.StringVar(&c.peers, "peers", fmt.Sprintf("0,10,%d,100,250", workload.ShmPeers-1), "idle client processes beside a busy one, which then all work, for peers; shm has at most "+strconv.Itoa(workload.ShmPeers)+" in all")
	f.BoolVar(&c.oneCore, "onecore", false, "confine all processes to one CPU")
	f.BoolVar(&c.busy, "busy", false, "run a program beside them that computes on every CPU")
	f.BoolVar(&p.enforce, "enforce", false, "with -targets or -verbs: fail if a target is missed")
	f.StringVar(&p.host, "host", "127.0.0.1", "where servers listen; hardware providers need a device's `address`")
	f.IntVar(&p.rounds, "rounds", 0, "rounds over all rows (default 5, with -demo 3)")
	f.DurationVar(&p.time, "time", 0, "measured time of a row in a round; five times that for idle, 100 conns or 100 busy peers (default 1s, with -targets 400ms, with -demo 250ms)")
}

// outputFlags defines the flags that say what is written, and where.
func (p *plan) outputFlags(f *flag.FlagSet) {
	f.StringVar(&p.jsonFile, "json", "", "write the results to this `file`")
	f.StringVar(&p.textFile, "text", "", "write what is printed to this `file`, too")
	f.StringVar(&p.csvFile, "csv", "", "write the rows to this `file` as comma-separated values")
	f.StringVar(&p.benchFile, "benchfmt", "", "write the rounds to this `file` in the format of Go's benchmarks: benchstat -col transport file")
	f.StringVar(&p.reportDir, "report", "", "write a page with plots and tables, index.html, and the plots as SVG files into this `directory`")
	f.StringVar(&p.from, "from", "", "measure nothing, but read the results from this `file`, which -json has written")
	f.StringVar(&p.profileDir, "profile", "", "write CPU profiles of both processes for every row and round into this `directory`")
}

// remoteFlags defines the flags for two machines.
func (p *plan) remoteFlags(f *flag.FlagSet) {
	f.BoolVar(&p.serve, "s", false, "serve measurements of clients (-c) on other machines, at -host; whoever reaches its port can have it work")
	f.StringVar(&p.server, "c", "", "measure with the server (-s) at this `host`, without unix, -targets, -verbs and -onecore")
	f.IntVar(&p.port, "port", controlPort, "TCP port by which -c tells -s what to do; 0 with -s is any")
}

// checkModes refuses flags that make no sense together. fixed says that other flags determine what
// is measured, and thisMachine that all processes have to be on this machine.
func (p *plan) checkModes(fixed, thisMachine bool) error {
	switch {
	case p.port < 0 || p.port > 65535 || p.port == 0 && p.server != "":
		return errors.New("-port must be that of a TCP port")
	case p.serve && p.server != "" || p.serve && p.from != "" || p.from != "" && p.server != "":
		return errors.New("-s, -c and -from exclude each other")
	case (p.serve || p.from != "" || p.server != "") && (fixed || thisMachine):
		return errors.New("-s, -c and -from exclude -targets, -verbs, -onecore and -busy")
	case p.from != "" && p.profileDir != "":
		return errors.New("-from measures nothing that -profile could show")
	}
	if p.serve {
		if a, err := netip.ParseAddr(p.host); err == nil && a.IsUnspecified() {
			return fmt.Errorf("-host %s: -s needs an address that clients can dial", p.host)
		}
	}
	if p.server != "" {
		p.server = net.JoinHostPort(p.server, strconv.Itoa(p.port))
	}
	return nil
}

// save writes what was asked for.
func (p plan) save(r report.Record) error {
	return errors.Join(
		report.Save(p.jsonFile, r.WriteJSON), report.Save(p.textFile, r.WriteText), report.Save(p.csvFile, r.WriteCSV),
		report.Save(p.benchFile, r.WriteBenchfmt), report.WriteReport(p.reportDir, r))
}

// convert writes a kept result in the forms that were asked for.
func (p plan) convert(w io.Writer) error {
	r, err := report.Read(p.from)
	if err != nil {
		return fmt.Errorf("-from: %w", err)
	}
	return errors.Join(r.WriteText(w), p.save(r))
}

func (p plan) makeProfileDir() error {
	if p.profileDir == "" {
		return nil
	}
	return os.MkdirAll(p.profileDir, 0o755)
}
