package load

import (
	"context"
	"errors"
	"time"

	"github.com/seed202c38ff/fabricnet/bench/internal/workload"
)

// measure runs j once, in two new processes.
func measure(ctx context.Context, program string, j Job) (workload.Sample, error) {
	if j.Transport == workload.TransportRsockets {
		return measureRsockets(ctx, j)
	}
	return measureFrom(ctx, program, j, func(ctx context.Context, j Job) (*process, error) {
		return start(ctx, program, roleServer, j)
	})
}

// A starter starts the server of a job, here or on the other machine.
type starter func(context.Context, Job) (*process, error)

// measureFrom runs j once, in a new client and in what startServer starts. The two start at the
// same time: loading libfabric with all its libraries may take a good part of a second.
func measureFrom(ctx context.Context, program string, j Job, startServer starter) (s workload.Sample, err error) {
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
	return measureBetween(server, client, 0)
}

const (
	// firstConns is how many servers a client meets in a round, one after the other.
	firstConns = 9
	// firstPause is how long a server has been listening when a client meets it.
	firstPause = 100 * time.Millisecond
)

// measureFirst measures the first conns of one new client to new servers, one after the other.
func measureFirst(ctx context.Context, program string, j Job, startServer starter) (all workload.Sample, err error) {
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
func measureMeeting(ctx context.Context, j Job, client *process, startServer starter) (s workload.Sample, err error) {
	server, err := startServer(ctx, j)
	if err != nil {
		return workload.Sample{}, err
	}
	defer func() { err = errors.Join(err, server.stop()) }()
	return measureBetween(server, client, firstPause)
}

// measureBetween tells the client where the server listens, which it has done for a pause then. Once
// the client is warm it does its work, and measureBetween finds out what the server used for it.
func measureBetween(server, client *process, pause time.Duration) (workload.Sample, error) {
	ready, err := server.receive()
	if err != nil {
		return workload.Sample{}, err
	}
	time.Sleep(pause)
	if _, err := client.ask(ready.Address); err != nil {
		return workload.Sample{}, err
	}
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
