package load

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/seed202c38ff/fabricnet/bench/internal/workload"
)

// rstreamProgram measures rsockets, librdmacm's sockets over RDMA: see rstream(1). Go programs
// can't use rsockets, so rstream is measured as a whole.
const rstreamProgram = "rstream"

const (
	// burst is how many transfers rstream makes for bw before the other side sends.
	burst = 100
	// probes is the number of turns that are tried to find out how many take the job's time.
	probes = 4
	// maxTurns bounds the number of turns.
	maxTurns = 10_000_000
)

// measureRsockets runs rstream for about the job's time. Its figures are means.
func measureRsockets(ctx context.Context, j Job) (workload.Sample, error) {
	ctx, cancel := context.WithTimeout(ctx, 4*j.Time+slack)
	defer cancel()
	warm, err := rstream(ctx, j, probes)
	if err != nil {
		return workload.Sample{}, err
	}
	turn := warm.Elapsed / probes
	return rstream(ctx, j, int(min(max(j.Time/max(turn, 1), probes), maxTurns)))
}

// rstream runs a server and a client, which take turns in sending.
func rstream(ctx context.Context, j Job, turns int) (workload.Sample, error) {
	transfers := 1
	switch j.Mode {
	case workload.ModeLat:
	case workload.ModeBW:
		transfers = burst
	default:
		return workload.Sample{}, fmt.Errorf("%s has no mode %s", rstreamProgram, j.Mode)
	}
	port, err := freePort(j.Host)
	if err != nil {
		return workload.Sample{}, err
	}
	args := []string{"-p", port, "-S", strconv.Itoa(j.Size), "-C", strconv.Itoa(transfers), "-I", strconv.Itoa(turns)}
	serverCtx, kill := context.WithCancel(ctx)
	defer kill()
	server := exec.CommandContext(serverCtx, rstreamProgram, append(args, "-b", j.Host)...)
	server.WaitDelay = killDelay
	if err := server.Start(); err != nil {
		return workload.Sample{}, err
	}
	served := make(chan error, 1)
	go func() { served <- server.Wait() }()
	out, client, err := connectRstream(ctx, append(args, "-s", j.Host), served)
	if err != nil {
		return workload.Sample{}, err
	}
	// Everything is measured. The server may now wait for the acknowledgement of a client that has
	// gone, for longer than half a minute over Soft-RoCE, though only its CPU time is still wanted.
	defer time.AfterFunc(killDelay, kill).Stop()
	if err := <-served; err != nil && (serverCtx.Err() == nil || ctx.Err() != nil) {
		return workload.Sample{}, fmt.Errorf("%s, serving: %w", rstreamProgram, err)
	}
	each, err := perTransfer(out)
	if err != nil {
		return workload.Sample{}, err
	}
	s := workload.Sample{Ops: uint64(turns), P50: 2 * each, P99: 2 * each, Elapsed: time.Duration(turns*transfers) * 2 * each}
	if j.Mode == workload.ModeBW { // transfers in both directions, one after the other
		s.Ops, s.P50, s.P99 = uint64(2*turns*transfers), each, each
	}
	s.Client.CPU = client.ProcessState.UserTime() + client.ProcessState.SystemTime()
	s.Server.CPU = server.ProcessState.UserTime() + server.ProcessState.SystemTime()
	return s, nil
}

// connectRstream runs the client, and runs it again for as long as the server refuses. The server
// does not say when it listens.
func connectRstream(ctx context.Context, args []string, served <-chan error) (out string, client *exec.Cmd, err error) {
	for {
		client = exec.CommandContext(ctx, rstreamProgram, args...)
		client.WaitDelay = killDelay
		var both bytes.Buffer
		client.Stdout, client.Stderr = &both, &both
		err = client.Run()
		if out = both.String(); err == nil && strings.Contains(out, "usec/xfer") {
			return out, client, nil
		}
		select {
		case e := <-served:
			return "", nil, errors.Join(fmt.Errorf("%s: %s", rstreamProgram, firstLines(strings.TrimSpace(out), 3)), err, e)
		case <-ctx.Done():
			return "", nil, fmt.Errorf("%s: %w: %s", rstreamProgram, ctx.Err(), firstLines(strings.TrimSpace(out), 3))
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// perTransfer reads the last column of the last line, in microseconds.
func perTransfer(out string) (time.Duration, error) {
	fields := strings.Fields(out)
	if len(fields) == 0 {
		return 0, fmt.Errorf("%s printed nothing", rstreamProgram)
	}
	us, err := strconv.ParseFloat(fields[len(fields)-1], 64)
	if err != nil || us <= 0 {
		return 0, fmt.Errorf("%s printed %q", rstreamProgram, out)
	}
	return time.Duration(us * float64(time.Microsecond)), nil
}

// freePort returns a TCP port that is free now.
func freePort(host string) (string, error) {
	l, err := net.Listen("tcp", anyPort(host))
	if err != nil {
		return "", err
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, err
}
