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
//
// The flags become a plan (flags.go, plan.go). In each round package load measures the plan's cases
// (run.go, sequence.go), and package report summarizes, judges and writes what came of it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"

	"github.com/seed202c38ff/fabricnet/bench/internal/load"
	"github.com/seed202c38ff/fabricnet/bench/internal/report"
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
