package load

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/seed202c38ff/fabricnet/bench/internal/workload"
)

// The roles of the processes that the benchmark starts, given as the first argument.
const (
	roleServer = "server"
	roleClient = "client"
)

// Commands that a process reads from its standard input, one per line. The client's first line is
// the server's address. The end of the input asks a process to clean up and exit.
const (
	askUsage   = "usage"   // the server, and peers: what it has used so far
	askMemory  = "memory"  // the same, without garbage
	askMark    = "mark"    // the same, and count memory from now on
	askMeasure = "measure" // the client: work for the job's time
)

// isQuestion reports whether a command is for a meter.
func isQuestion(command string) bool {
	return command == askUsage || command == askMemory || command == askMark
}

// A reply is one line of JSON on a process's standard output. The server's first one, with its
// address, comes unasked.
type reply struct {
	Address string          `json:",omitempty"`
	Usage   workload.Usage  `json:",omitzero"`
	Sample  workload.Sample `json:",omitzero"`
	Began   time.Time       `json:",omitzero"` // of a peer: when its turn began
	// Times says how long the sample's operations took: how many of them are in each bucket of the
	// histogram.
	Times map[int]uint64 `json:",omitempty"`
	Offer *Offer         `json:",omitempty"` // from the server of another machine
	Error string         `json:",omitempty"`
}

// Child runs this process in a role, if that is what its arguments ask for, and returns its exit
// status.
func Child(args []string) (status int, isChild bool) {
	if len(args) != 3 || !slices.Contains([]string{roleServer, roleClient, roleLoad}, args[1]) {
		return 0, false
	}
	err := runChild(args[1], args[2], os.Stdin, os.Stdout)
	if err == nil {
		return 0, true
	}
	if json.NewEncoder(os.Stdout).Encode(reply{Error: err.Error()}) != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return 1, true
}

// runChild plays one role until the standard input ends.
func runChild(role, encoded string, in io.Reader, out io.Writer) error {
	var j Job
	if err := json.Unmarshal([]byte(encoded), &j); err != nil {
		return fmt.Errorf("the job is not readable: %w", err)
	}
	if role == roleLoad {
		return playLoad(in, json.NewEncoder(out))
	}
	play := map[string]func(context.Context, Job, carrier, *bufio.Scanner, *json.Encoder) error{
		roleServer: playServer,
		roleClient: playClient,
	}[role]
	if play == nil {
		return fmt.Errorf("unknown role %q", role)
	}
	transport, err := newCarrier(j)
	if err != nil {
		return err
	}
	err = play(context.Background(), j, transport, bufio.NewScanner(in), json.NewEncoder(out))
	return errors.Join(err, transport.Close())
}

// playServer listens, says where, and answers questions about what it uses.
func playServer(ctx context.Context, j Job, transport carrier, in *bufio.Scanner, out *json.Encoder) error {
	l, err := transport.listen(ctx)
	if err != nil {
		return err
	}
	m := &meter{transport: transport}
	served := make(chan error, 1)
	go func() { served <- serve(l, j, m) }()
	if err := out.Encode(reply{Address: l.Addr().String()}); err != nil {
		return err
	}
	profile := profiler{job: j, role: roleServer}
	for in.Scan() && isQuestion(in.Text()) {
		if err := errors.Join(profile.start(), m.report(in.Text(), out)); err != nil {
			return err
		}
	}
	return errors.Join(in.Err(), profile.stop(), l.Close(), <-served)
}

// serve does the server's part of j's mode until l is closed.
func serve(l net.Listener, j Job, m *meter) error {
	switch j.Mode {
	case workload.ModeBW:
		return serveConns(l, func(c net.Conn) error { return sink(c, reading(c), &marks{size: j.Size}) })
	case workload.ModeZC:
		return serveConns(l, func(c net.Conn) error { return sinkStamped(c, j.Size) })
	case workload.ModeIdle:
		return serveConns(l, func(c net.Conn) error { return echoIdle(c, m) })
	case workload.ModeRPC:
		return serveCalls(l)
	case workload.ModeHTTP:
		return serveBodies(l, j.Size)
	case workload.ModePeers:
		return serveConns(l, m.counting(serveTurns))
	}
	return serveConns(l, echo(j.Size))
}

// playClient opens conns to the server, warms them up, and measures when asked
// to.
func playClient(ctx context.Context, j Job, transport carrier, in *bufio.Scanner, out *json.Encoder) error {
	if j.Mode == workload.ModePeers {
		return playPeer(ctx, transport, in, out)
	}
	if j.Mode == workload.ModeFirst {
		return playFirst(ctx, j, transport, in, out)
	}
	if !in.Scan() {
		return in.Err()
	}
	address := in.Text()
	dial := func() (net.Conn, error) { return transport.dial(ctx, address) }
	m := &meter{transport: transport}
	workers, closeAll, err := openWorkers(ctx, j, dial, m)
	if err != nil {
		return err
	}
	if _, _, err := workTogether(workers, j.WarmUp, m); err != nil {
		return errors.Join(err, closeAll())
	}
	if err := out.Encode(reply{}); err != nil {
		return err
	}
	profile := profiler{job: j, role: roleClient}
	for in.Scan() && in.Text() == askMeasure {
		if err := profile.start(); err != nil {
			return errors.Join(err, closeAll())
		}
		s, times, err := workTogether(workers, j.Time, m)
		if err != nil {
			return errors.Join(err, closeAll())
		}
		s.Take(times)
		if err := out.Encode(reply{Sample: s, Times: times.Counted()}); err != nil {
			return err
		}
	}
	return errors.Join(in.Err(), profile.stop(), closeAll())
}

// playFirst opens its first conn to one server after the other. One line of input has the server's
// address, and the next one asks for the measurement.
func playFirst(ctx context.Context, j Job, transport carrier, in *bufio.Scanner, out *json.Encoder) error {
	if err := listProviders(ctx, j, transport); err != nil {
		return err
	}
	m := &meter{transport: transport}
	for in.Scan() {
		address := in.Text()
		if err := out.Encode(reply{}); err != nil {
			return err
		}
		dial := func() (net.Conn, error) { return transport.dial(ctx, address) }
		if !in.Scan() {
			break
		}
		s, times, err := workTogether([]worker{connect(dial, 1)}, j.Time, m)
		if err != nil {
			return err
		}
		s.Take(times)
		if err := out.Encode(reply{Sample: s, Times: times.Counted()}); err != nil {
			return err
		}
	}
	return in.Err()
}

// listProviders makes libfabric list its providers for the first time in this process, without
// opening anything: it dials a server that hangs up.
func listProviders(ctx context.Context, j Job, transport carrier) error {
	if j.Provider == "" {
		return nil
	}
	l, err := net.Listen("tcp", net.JoinHostPort(j.Host, "0"))
	if err != nil {
		return err
	}
	defer l.Close()
	go func() {
		if c, err := l.Accept(); err == nil {
			c.Close()
		}
	}()
	c, err := transport.dial(ctx, l.Addr().String())
	if err == nil {
		return errors.Join(errors.New("who hangs up was taken for a server"), c.Close())
	}
	return nil
}

// workTogether runs all workers at once for about d and sums up what they did. The times of the
// operations are returned separately.
func workTogether(workers []worker, d time.Duration, m *meter) (workload.Sample, *workload.Histogram, error) {
	all := new(workload.Histogram)
	histograms := make([]workload.Histogram, len(workers))
	errs := make([]error, len(workers))
	before, err := m.read()
	if err != nil {
		return workload.Sample{}, all, err
	}
	start := time.Now()
	var wg sync.WaitGroup
	for i, work := range workers {
		wg.Go(func() { errs[i] = work(start.Add(d), &histograms[i]) })
	}
	wg.Wait()
	elapsed := time.Since(start)
	after, err := m.read()
	if err := errors.Join(append(errs, err)...); err != nil {
		return workload.Sample{}, all, err
	}
	shares := make([]float64, len(workers))
	for i := range histograms {
		all.Merge(&histograms[i])
		shares[i] = float64(histograms[i].Total)
	}
	return workload.Sample{Ops: all.Total, Elapsed: elapsed, Fairness: jain(shares), Client: after.Since(before)}, all, nil
}
