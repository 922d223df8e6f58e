// Bench compares net.Conns over fabric with TCP and Unix sockets on one machine: round trips,
// streams, gRPC calls, dialing, and many client processes.
//
//	go run ./bench                  # every size; about a quarter of an hour
//	go run ./bench -targets         # what the project measures itself by
//	go run ./bench -demo            # a selection that takes a minute and a half
//	go run ./bench -modes lat -sizes 64,4K -providers shm
//
// With two machines, the server and the client, which writes a page with plots:
//
//	bench -s -host 10.0.0.1
//	bench -c 10.0.0.1 -report results
//
// For every row of its table, in every round, it starts a server process and a client process of
// its own. A round goes through all rows before the next one begins, and each round starts with
// another transport, so that whatever else the machine does meanwhile affects all of them. The
// table shows medians. Rows with peers are measured by processes that all such rows of a transport
// share. Bench exits with status 1 if any row has failed. docs/performance.md says more.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"time"

	"github.com/seed202c38ff/fabricnet/bench/internal/load"
	"github.com/seed202c38ff/fabricnet/bench/internal/report"
	"github.com/seed202c38ff/fabricnet/bench/internal/workload"
)

func main() {
	if status, isChild := load.Child(os.Args); isChild {
		os.Exit(status)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := bench(ctx, os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func bench(ctx context.Context, args []string) error {
	p, err := parse(args)
	if err != nil {
		return err
	}
	switch {
	case p.serve:
		return p.serveOthers(ctx)
	case p.from != "":
		return p.convert(os.Stdout)
	}
	r, err := p.run(ctx, args)
	if err != nil {
		return err
	}
	if err := errors.Join(r.WriteTables(os.Stdout), p.save(r)); err != nil {
		return err
	}
	for _, row := range r.Rows {
		if row.Error != "" {
			return errors.New("some rows have failed")
		}
	}
	if p.enforce {
		return report.Enforce(r.Verdicts)
	}
	return nil
}

// parse reads the flags.
func parse(args []string) (plan, error) {
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	var p plan
	var (
		targets   = f.Bool("targets", false, "measure what the project's targets need, and judge it; the same flags are ignored")
		verbs     = f.Bool("verbs", false, "like -targets, but for an RDMA device at -host, compared with rsockets, too (rstream)")
		demo      = f.Bool("demo", false, "measure a choice, in a minute and a half; -modes, -sizes, -inflight, -conns, -peers, -onecore and -busy are ignored")
		modes     = f.String("modes", "lat,bw,rpc,conn", "kinds of work: lat (round trip), bw (one way), zc (one way by the zero-copy calls, verified), rpc (gRPC unary), http (GETs over HTTP/1.1: of 64 bytes, and of 1G), conn (dial, echo a byte, close), first (conn between two processes), idle, peers (many client processes with a conn each)")
		sizes     = f.String("sizes", "64,512,4K,32K,64K,256K,1M,4M", "bytes per operation, for lat, bw, zc and rpc")
		providers = f.String("providers", "all", "libfabric providers, such as shm,tcp;ofi_rxm, or all that rdmanet knows and this machine offers at -host")
		inflight  = f.String("inflight", "1,64", "calls in flight on each conn, for rpc")
		conns     = f.String("conns", "1", "conns used at once")
		peers     = f.String("peers", fmt.Sprintf("0,10,%d,100,250", workload.ShmPeers-1), "idle client processes beside a busy one, which then all work, for peers; shm has at most "+strconv.Itoa(workload.ShmPeers)+" in all")
		oneCore   = f.Bool("onecore", false, "confine all processes to one CPU")
		busy      = f.Bool("busy", false, "run a program beside them that computes on every CPU")
	)
	f.BoolVar(&p.enforce, "enforce", false, "with -targets or -verbs: fail if a target is missed")
	f.StringVar(&p.host, "host", "127.0.0.1", "where servers listen; hardware providers need a device's `address`")
	f.IntVar(&p.rounds, "rounds", 0, "rounds over all rows (default 5, with -demo 3)")
	f.DurationVar(&p.time, "time", 0, "measured time of a row in a round; five times that for idle, 100 conns or 100 busy peers (default 1s, with -targets 400ms, with -demo 250ms)")
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
	p.providers = list(*providers)
	if err := p.checkModes(*targets || *verbs, *oneCore || *busy); err != nil {
		return plan{}, err
	}
	switch {
	case p.serve || p.from != "":
		return p, nil
	case *demo && *targets || *demo && *verbs || *targets && *verbs:
		return plan{}, errors.New("-demo, -targets and -verbs exclude each other")
	case p.enforce && !*targets && !*verbs:
		return plan{}, errors.New("-enforce needs targets: -targets or -verbs")
	case *targets:
		p.targets = report.LoopbackTargets
		return p.withDefaults(5, 400*time.Millisecond), nil
	case *verbs:
		p.targets, p.providers = report.VerbsTargets, []string{workload.Verbs.Provider}
		return p.withDefaults(5, time.Second), nil
	case *demo:
		p.works = demoWorks()
		return p.withDefaults(3, 250*time.Millisecond), nil
	}
	bytes, err1 := numbers(*sizes, load.MaxSize)
	calls, err2 := numbers(*inflight, load.MaxInflight)
	n, err3 := numbers(*conns, load.MaxConns)
	idle, err4 := numbersFrom(0, *peers, maxPeers)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return plan{}, err
	}
	var err error
	p.works, err = p.worksOf(list(*modes), bytes, calls, n, idle)
	for i := range p.works {
		p.works[i].OneCore, p.works[i].Load = *oneCore, *busy
	}
	return p.withDefaults(5, time.Second), err
}
