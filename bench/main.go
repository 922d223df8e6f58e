// Bench compares net.Conns over fabric with TCP and Unix sockets on one
// machine: round trips, streams, gRPC calls and dialing.
//
//	go run ./bench                  # everything; about a quarter of an hour
//	go run ./bench -demo            # a choice that takes a minute
//	go run ./bench -modes lat -sizes 64,4K -providers shm
//
// For every row of its table, in every round, it starts a server process and
// a client process of its own. Rounds go through all rows before the next one
// begins, each starting with another transport, so that what else the machine
// does meanwhile meets all of them, and the table shows medians. It exits with status 1 if any row has failed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"time"
)

// maxSize bounds the operations' size, which is held in memory several times.
const maxSize = 32 << 20

func main() {
	if len(os.Args) == 3 && (os.Args[1] == roleServer || os.Args[1] == roleClient) {
		os.Exit(child(os.Args[1], os.Args[2]))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := bench(ctx, os.Args[1:]); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "bench:", err)
		}
		os.Exit(1)
	}
}

func bench(ctx context.Context, args []string) error {
	p, jsonFile, err := parse(args)
	if err != nil {
		return err
	}
	fmt.Println(machine(time.Now()))
	if slices.Equal(p.providers, []string{"all"}) {
		var absent []absence
		if p.providers, absent, err = offered(ctx, p.host); err != nil {
			return err
		}
		if len(absent) > 0 {
			fmt.Println(notMeasured(absent))
		}
	}
	fmt.Println()
	cells := p.cells()
	fmt.Fprintf(os.Stderr, "%d rows, %d rounds of %v each, about %v in all\n",
		len(cells), p.rounds, p.time, p.estimate().Round(time.Second))
	results, err := runAll(ctx, p, cells)
	if err != nil {
		return err
	}
	if err := writeTable(os.Stdout, results); err != nil {
		return err
	}
	if jsonFile != "" {
		if err := saveJSON(jsonFile, results); err != nil {
			return err
		}
	}
	for _, r := range results {
		if r.Error != "" {
			return errors.New("some rows have failed")
		}
	}
	return nil
}

// parse reads the flags into a plan and the name of the JSON file.
func parse(args []string) (plan, string, error) {
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	var (
		demo      = f.Bool("demo", false, "measure a one-minute choice; -modes, -sizes, -inflight and -conns are ignored")
		modes     = f.String("modes", "lat,bw,rpc,conn", "kinds of work: lat (round trip), bw (one way), rpc (gRPC unary), conn (dial, echo a byte, close)")
		sizes     = f.String("sizes", "64,512,4K,32K,64K,256K,1M,4M", "bytes per operation, for lat, bw and rpc")
		providers = f.String("providers", "all", "libfabric providers, such as shm,tcp;ofi_rxm, or all that rdmanet knows and this machine offers at -host")
		host      = f.String("host", "127.0.0.1", "where servers listen; hardware providers need a device's `address`")
		rounds    = f.Int("rounds", 0, "rounds over all rows (default 5, with -demo 3)")
		duration  = f.Duration("time", 0, "measured time of a row in a round (default 1s, with -demo 250ms)")
		inflight  = f.String("inflight", "1,64", "calls in flight on each conn, for rpc")
		conns     = f.String("conns", "1", "conns used at once")
		jsonFile  = f.String("json", "", "write the results to this `file`")
	)
	if err := f.Parse(args); err != nil {
		return plan{}, "", err
	}
	if f.NArg() > 0 {
		return plan{}, "", fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	p := plan{host: *host, providers: list(*providers), rounds: *rounds, time: *duration}
	if p.rounds < 0 || p.time < 0 {
		return plan{}, "", errors.New("-rounds and -time must be positive")
	}
	if *demo {
		p.works = demoWorks()
		return p.withDefaults(3, 250*time.Millisecond), *jsonFile, nil
	}
	bytes, err1 := numbers(*sizes, maxSize)
	calls, err2 := numbers(*inflight, 4096)
	n, err3 := numbers(*conns, 1024)
	if err := errors.Join(err1, err2, err3); err != nil {
		return plan{}, "", err
	}
	var err error
	p.works, err = allWorks(list(*modes), bytes, calls, n)
	return p.withDefaults(5, time.Second), *jsonFile, err
}

// runAll measures every cell in every round, and returns early only when ctx
// ends.
func runAll(ctx context.Context, p plan, cells []cell) ([]result, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	samples := make([][]sample, len(cells))
	failures := make([]error, len(cells))
	for round := range p.rounds {
		fmt.Fprintf(os.Stderr, "round %d of %d\n", round+1, p.rounds)
		for _, i := range sequence(cells, round) {
			if failures[i] != nil {
				continue
			}
			s, err := measure(ctx, program, p.job(cells[i]))
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			if err != nil {
				failures[i] = fmt.Errorf("round %d: %w", round+1, err)
				continue
			}
			samples[i] = append(samples[i], s)
		}
	}
	results := make([]result, len(cells))
	for i, c := range cells {
		if failures[i] != nil {
			results[i] = result{cell: c, Rounds: len(samples[i]), Error: failures[i].Error()}
			continue
		}
		results[i] = summarize(c, samples[i])
	}
	return results, nil
}

func saveJSON(name string, results []result) (err error) {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return writeJSON(f, results)
}
