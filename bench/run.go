package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/seed202c38ff/fabricnet/bench/internal/load"
	"github.com/seed202c38ff/fabricnet/bench/internal/report"
	"github.com/seed202c38ff/fabricnet/bench/internal/workload"
)

// run measures what p says. It first prints what is known before that.
func (p plan) run(ctx context.Context, args []string) (report.Record, error) {
	r := report.Record{
		Commit:  builtFrom(),
		Command: strings.Join(append([]string{"bench"}, args...), " "),
		Machine: machine(),
		Date:    time.Now().Truncate(time.Second),
		Rounds:  p.rounds,
	}
	if err := p.makeProfileDir(); err != nil {
		return r, err
	}
	var offer load.Offer
	var err error
	if p.server != "" {
		if offer, err = load.AskOffer(ctx, p.server); err != nil {
			return r, err
		}
		r.Server = offer.Machine + ", commit " + offer.Commit
	}
	if slices.Equal(p.providers, []string{"all"}) {
		if p.providers, r.Absent, err = p.everywhere(ctx, offer); err != nil {
			return r, err
		}
	}
	r.OthersCPU = othersCPU(ctx, time.Second)
	if err := r.WriteHeader(os.Stdout); err != nil {
		return r, err
	}
	cases := p.cases()
	memory := slices.ContainsFunc(cases, func(c workload.Case) bool { return c.Mode == workload.ModeIdle && c.Peers() > 0 })
	g, err := load.New(p.server, memory)
	if err != nil {
		return r, err
	}
	defer g.Close()
	if r.Rows, err = runAll(ctx, p, cases, g.Measure); err != nil {
		return r, err
	}
	if p.targets != nil {
		r.Verdicts = report.Judge(p.targets, r.Rows)
	}
	return r, nil
}

// everywhere lists the providers that all machines offer, and says which are
// absent.
func (p plan) everywhere(ctx context.Context, o load.Offer) (providers []string, absences string, err error) {
	host := p.host
	if p.server != "" {
		host = o.Client
	}
	have, absent, err := load.Offered(ctx, host)
	if err != nil || p.server == "" {
		return have, absent, err
	}
	both, missing := o.Common(have)
	lines := []string{absent}
	for _, provider := range missing {
		lines = append(lines, "not between these machines: rdma/"+provider)
	}
	return both, strings.TrimSpace(strings.Join(lines, "\n")), nil
}

// A measurer does a job once.
type measurer func(context.Context, load.Job) (workload.Sample, error)

// runAll measures every case in every round, and returns early only when ctx ends.
func runAll(ctx context.Context, p plan, cases []workload.Case, with measurer) ([]report.Result, error) {
	samples := make([][]workload.Sample, len(cases))
	failures := make([]error, len(cases))
	possible := slices.DeleteFunc(slices.Clone(cases), func(c workload.Case) bool { return c.Impossible() != "" })
	bar := newProgress(os.Stderr, p, possible)
	defer bar.end()
	for round := range p.rounds {
		bar.round(round)
		order := slices.DeleteFunc(sequence(cases, round), func(i int) bool {
			return failures[i] != nil || cases[i].Impossible() != ""
		})
		for k, i := range order {
			j := p.job(cases[i])
			j.Round = round + 1
			j.Last = k+1 == len(order) || !shareProcesses(cases[i], cases[order[k+1]])
			bar.begin(j)
			s, err := with(ctx, j)
			bar.finish(j)
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
	results := make([]report.Result, len(cases))
	for i, c := range cases {
		if failures[i] != nil {
			results[i] = report.Result{Case: c, Rounds: len(samples[i]), Error: failures[i].Error()}
			continue
		}
		results[i] = report.Summarize(c, samples[i])
		results[i].NotPossible = c.Impossible()
	}
	return results, nil
}

// serveOthers serves measurements of clients on other machines.
func (p plan) serveOthers(ctx context.Context) error {
	if err := p.makeProfileDir(); err != nil {
		return err
	}
	return load.Server{Host: p.host, Port: p.port, Profile: p.profileDir, Machine: machine(), Commit: builtFrom()}.Serve(ctx)
}
