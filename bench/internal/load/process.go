package load

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"time"

	"github.com/seed202c38ff/fabricnet/bench/internal/workload"
)

const (
	// slack is the time that a measurement may take beyond its own: to start two processes, open
	// the fabric, and close it again.
	slack = 30 * time.Second
	// killDelay is how long a killed process may take to let go of its pipes.
	killDelay = 5 * time.Second
)

// process is a server or a client that this program has started, or one that the other machine has
// started.
type process struct {
	role string
	pid  int // 0 on the other machine
	in   io.WriteCloser
	out  *json.Decoder
	wait func() error // waits for its end
}

// start runs program in the role. It is killed when ctx ends.
func start(ctx context.Context, program, role string, j Job) (*process, error) {
	encoded, err := json.Marshal(j)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, program, role, string(encoded))
	var stderr bytes.Buffer
	cmd.WaitDelay = killDelay
	cmd.Stderr = &stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p := &process{role: role, in: in, out: json.NewDecoder(bufio.NewReader(out))}
	p.wait = func() error {
		err := cmd.Wait()
		if message := strings.TrimSpace(stderr.String()); err != nil && message != "" {
			return fmt.Errorf("%w: %s", err, firstLines(message, 3))
		}
		return err
	}
	run := cmd.Start
	if j.OneCore {
		run = func() error { return onOneCore(cmd.Start) }
	}
	if err := run(); err != nil {
		return nil, err
	}
	p.pid = cmd.Process.Pid
	return p, nil
}

// ask sends a command and waits for its reply.
func (p *process) ask(command string) (reply, error) {
	if _, err := fmt.Fprintln(p.in, command); err != nil {
		return reply{}, fmt.Errorf("%s: %w", p.role, err)
	}
	return p.receive()
}

func (p *process) receive() (reply, error) {
	var r reply
	if err := p.out.Decode(&r); err != nil {
		return reply{}, fmt.Errorf("%s ended early: %w", p.role, err)
	}
	if r.Error != "" {
		return reply{}, fmt.Errorf("%s: %s", p.role, r.Error)
	}
	return r, nil
}

// stop asks the process to clean up and waits for its end.
func (p *process) stop() error {
	// If the process has gone, the pipe is closed already; Wait reports that.
	_ = p.in.Close()
	failed := p.lastError() // before wait, which closes the pipe
	err := p.wait()
	switch {
	case err != nil && failed != "":
		return fmt.Errorf("%s: %w: %s", p.role, err, failed)
	case err != nil:
		return fmt.Errorf("%s: %w", p.role, err)
	case failed != "":
		return fmt.Errorf("%s: %s", p.role, failed)
	}
	return nil
}

// lastError reads the process's output to its end, and returns the error it
// ended with, such as that of closing the fabric.
func (p *process) lastError() string {
	failed := ""
	for {
		var r reply
		if p.out.Decode(&r) != nil {
			return failed
		}
		if r.Error != "" {
			failed = r.Error
		}
	}
}

// measure runs j once, in two new processes.
func measure(ctx context.Context, program string, j Job) (workload.Sample, error) {
	if j.Transport == workload.TransportRsockets {
		return measureRsockets(ctx, j)
	}
	return measureFrom(ctx, program, j, func(ctx context.Context, j Job) (*process, error) {
		return start(ctx, program, roleServer, j)
	})
}

// measureFrom runs j once, in a new client and in what startServer starts. The two start at the
// same time: loading libfabric with all its libraries may take a good part of a second.
func measureFrom(ctx context.Context, program string, j Job, startServer func(context.Context, Job) (*process, error)) (s workload.Sample, err error) {
	ctx, cancel := context.WithTimeout(ctx, j.limit())
	defer cancel()
	if j.Mode == workload.ModeFirst {
		return measureFirst(ctx, program, j, startServer)
	}
	server, err := startServer(ctx, j)
	if err != nil {
		return workload.Sample{}, err
	}
	defer func() { err = errors.Join(err, server.stop()) }()
	client, err := start(ctx, program, roleClient, j)
	if err != nil {
		return workload.Sample{}, err
	}
	defer func() { err = errors.Join(err, client.stop()) }()
	ready, err := server.receive()
	if err != nil {
		return workload.Sample{}, err
	}
	if _, err := client.ask(ready.Address); err != nil {
		return workload.Sample{}, err
	}
	return measureBetween(server, client)
}

const (
	// firstConns is how many servers a client meets in a round, one after the other.
	firstConns = 9
	// firstPause is how long a server has been listening when a client meets it.
	firstPause = 100 * time.Millisecond
)

// measureFirst measures the first conns of one new client to new servers, one after the other.
func measureFirst(ctx context.Context, program string, j Job, startServer func(context.Context, Job) (*process, error)) (all workload.Sample, err error) {
	client, err := start(ctx, program, roleClient, j)
	if err != nil {
		return workload.Sample{}, err
	}
	defer func() { err = errors.Join(err, client.stop()) }()
	all.Fairness = 1
	times := new(workload.Histogram)
	for i := range firstConns {
		s, err := measureMeeting(ctx, j, client, startServer)
		if err != nil {
			return workload.Sample{}, err
		}
		if i == 0 {
			all.Cold = s.P50
		}
		times.AddCounted(s.Times)
		all.Elapsed += s.Elapsed
		all.Client, all.Server = all.Client.Plus(s.Client), all.Server.Plus(s.Server)
	}
	all.Take(times)
	all.Times = times.Counted()
	return all, nil
}

// measureMeeting measures a client's first conn to a new server.
func measureMeeting(ctx context.Context, j Job, client *process, startServer func(context.Context, Job) (*process, error)) (s workload.Sample, err error) {
	server, err := startServer(ctx, j)
	if err != nil {
		return workload.Sample{}, err
	}
	defer func() { err = errors.Join(err, server.stop()) }()
	ready, err := server.receive()
	if err != nil {
		return workload.Sample{}, err
	}
	time.Sleep(firstPause)
	if _, err := client.ask(ready.Address); err != nil {
		return workload.Sample{}, err
	}
	return measureBetween(server, client)
}

// measureBetween makes a client that is warm do its work, and finds out what the server used for
// it.
func measureBetween(server, client *process) (workload.Sample, error) {
	before, err := server.ask(askUsage)
	if err != nil {
		return workload.Sample{}, err
	}
	measured, err := client.ask(askMeasure)
	if err != nil {
		return workload.Sample{}, err
	}
	after, err := server.ask(askUsage)
	if err != nil {
		return workload.Sample{}, err
	}
	s := measured.Sample
	s.Server = after.Usage.Since(before.Usage)
	s.Times = measured.Times
	return s, nil
}

func firstLines(s string, n int) string {
	lines := strings.Split(s, "\n")
	return strings.Join(lines[:min(n, len(lines))], "; ")
}
