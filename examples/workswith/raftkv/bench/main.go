// Bench measures raftkv over TCP and over a fabric, on one host: what three nodes commit, and how
// long they are without a leader after one was killed. From the
// top of the repository:
//
//	go run ./examples/workswith/raftkv/bench
//
// The rounds of the two networks take turns, and the medians of the rounds are printed. The data
// are kept in memory by default, since the fsync of a disk takes longer than either network; -dir
// says otherwise.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/seed202c38ff/fabricnet/examples/workswith/raftkv/cluster"
)

const (
	valueSize = 128
	patience  = time.Minute
)

var (
	networks = []string{"tcp", "rdma"}
	clients  = []int{1, 64}
)

// round is what one round has measured.
type round struct {
	loads    []load        // in the order of clients
	noLeader time.Duration // from the kill to the first commit after it
}

// load is what some clients have committed.
type load struct {
	rate     float64 // commits a second
	p50, p99 time.Duration
	cpu      time.Duration // of nodes and clients, for each commit
}

func main() {
	log.SetFlags(0)
	rounds := flag.Int("rounds", 7, "how many `times` each network is measured")
	length := flag.Duration("time", 3*time.Second, "how `long` clients commit in each round")
	heartbeat := flag.Duration("heartbeat", time.Second, "raftkv's")
	dir := flag.String("dir", "/dev/shm", "the `folder` for data")
	flag.Parse()
	if *rounds < 1 || *length <= 0 {
		log.Fatal("-rounds and -time must be positive")
	}
	if err := run(*rounds, *length, *heartbeat, *dir); err != nil {
		log.Fatal(err)
	}
}

func run(rounds int, length, heartbeat time.Duration, dir string) (err error) {
	dir, err = os.MkdirTemp(dir, "raftkv")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	program, err := cluster.Build(dir)
	if err != nil {
		return err
	}
	measured := make(map[string][]round)
	for i := range rounds {
		for j := range networks {
			network := networks[(i+j)%len(networks)]
			r, err := measure(program, network, dir, length, "-heartbeat", heartbeat.String())
			if err != nil {
				return fmt.Errorf("%s: %w", network, err)
			}
			measured[network] = append(measured[network], r)
		}
	}
	report(measured)
	return nil
}

// measure starts a cluster, puts load on it, and then kills its leader.
func measure(program, network, dir string, length time.Duration, flags ...string) (r round, err error) {
	dir, err = os.MkdirTemp(dir, network)
	if err != nil {
		return r, err
	}
	c, err := cluster.Start(program, network, dir, flags...)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, c.Stop(), os.RemoveAll(dir)) }()
	ctx, cancel := context.WithTimeout(context.Background(), patience+3*length)
	defer cancel()
	leader, err := committed(ctx, c)
	if err != nil {
		return r, err
	}
	for _, n := range clients {
		if _, err := commit(ctx, c, leader, n, length/4); err != nil { // for conns to be there
			return r, err
		}
		l, err := commit(ctx, c, leader, n, length)
		if err != nil {
			return r, err
		}
		r.loads = append(r.loads, l)
	}
	start := time.Now()
	if err := c.Kill(leader); err != nil {
		return r, err
	}
	_, err = committed(ctx, c)
	r.noLeader = time.Since(start)
	return r, err
}

// committed waits until a leader has committed something, and returns that.
func committed(ctx context.Context, c *cluster.Cluster) (int, error) {
	for {
		leader, err := c.Leader(ctx)
		if err != nil {
			return 0, err
		}
		if err := c.Put(ctx, leader, "key", nil); err == nil {
			return leader, nil
		}
	}
}

// commit has n clients put values by way of the leader, each one after the other.
func commit(ctx context.Context, c *cluster.Cluster, leader, n int, length time.Duration) (load, error) {
	took, errs := make([][]time.Duration, n), make([]error, n)
	value := make([]byte, valueSize)
	before, err := c.CPU()
	if err != nil {
		return load{}, err
	}
	var wg sync.WaitGroup
	start := time.Now()
	for i := range n {
		wg.Go(func() {
			for key := 0; time.Since(start) < length && errs[i] == nil; key++ {
				begin := time.Now()
				errs[i] = c.Put(ctx, leader, fmt.Sprint("key", i, "-", key%100), value)
				took[i] = append(took[i], time.Since(begin))
			}
		})
	}
	wg.Wait()
	all := slices.Concat(took...)
	l := load{rate: float64(len(all)) / time.Since(start).Seconds()}
	slices.Sort(all)
	l.p50, l.p99 = all[len(all)/2], all[len(all)*99/100]
	after, err := c.CPU()
	l.cpu = (after - before) / time.Duration(len(all))
	return l, errors.Join(append(errs, err)...)
}

func report(measured map[string][]round) {
	fmt.Printf("%-31s %12s %12s   least to most, %s and %s\n", "medians", networks[0], networks[1], networks[0], networks[1])
	for i, n := range clients {
		row(measured, fmt.Sprintf("%d clients, commits a second", n), "%.0f", func(r round) float64 { return r.loads[i].rate })
		row(measured, fmt.Sprintf("%d clients, p50, us", n), "%.0f", func(r round) float64 { return micros(r.loads[i].p50) })
		row(measured, fmt.Sprintf("%d clients, p99, us", n), "%.0f", func(r round) float64 { return micros(r.loads[i].p99) })
		row(measured, fmt.Sprintf("%d clients, CPU per commit, us", n), "%.0f", func(r round) float64 { return micros(r.loads[i].cpu) })
	}
	row(measured, "without a leader, ms", "%.0f", func(r round) float64 { return micros(r.noLeader) / 1000 })
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// row prints a value of all rounds.
func row(measured map[string][]round, name, format string, value func(round) float64) {
	fmt.Printf("%-31s", name)
	var ranges string
	for _, network := range networks {
		var values []float64
		for _, r := range measured[network] {
			values = append(values, value(r))
		}
		slices.SortFunc(values, cmp.Compare[float64])
		fmt.Printf(" %12s", fmt.Sprintf(format, values[len(values)/2]))
		ranges += fmt.Sprintf("   "+format+" to "+format, values[0], values[len(values)-1])
	}
	fmt.Println(ranges)
}
