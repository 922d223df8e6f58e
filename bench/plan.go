package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed202c38ff/fabricnet/bench/internal/load"
	"github.com/seed202c38ff/fabricnet/bench/internal/report"
	"github.com/seed202c38ff/fabricnet/bench/internal/workload"
)

// A plan says what to measure and for how long.
type plan struct {
	works     []workload.Case // without transports
	targets   []report.Target // measure what they need instead, and judge it
	host      string          // where servers listen
	providers []string
	rounds    int
	time      time.Duration // measured time of a case in one round
	jsonFile  string
	textFile  string
	csvFile   string
	benchFile string
	reportDir string
	from      string // a file to read instead of measuring
	enforce   bool   // a missed target is a failure

	profileDir string
	serve      bool
	server     string // the address of a server on another machine
	port       int
}

// cases lists the rows of the table. All transports of one work follow each other, so that they are
// measured under conditions that are as similar as possible.
func (p plan) cases() (all []workload.Case) {
	if p.targets != nil {
		return report.TargetCases(p.targets, p.providers)
	}
	for _, w := range p.works {
		for _, t := range p.transports(w) {
			all = append(all, w.Over(t))
		}
	}
	return all
}

// transports returns those to compare by w.
func (p plan) transports(w workload.Case) []workload.Transport {
	list := []workload.Transport{workload.TCP}
	if p.server == "" {
		list = append(list, workload.Unix)
	}
	for _, provider := range p.providers {
		list = append(list, workload.Transport{Name: workload.TransportRDMA, Provider: provider})
		if w.Mode == workload.ModeConn {
			list = append(list, workload.Transport{Name: workload.TransportFresh, Provider: provider})
		}
	}
	return list
}

// demoWorks is a selection of works that takes about a minute on five transports.
func demoWorks() []workload.Case {
	return []workload.Case{
		{Mode: workload.ModeLat, Size: 64, Inflight: 1, Conns: 1},
		{Mode: workload.ModeLat, Size: 64 << 10, Inflight: 1, Conns: 1},
		{Mode: workload.ModeBW, Size: 64 << 10, Inflight: 1, Conns: 1},
		{Mode: workload.ModeBW, Size: 1 << 20, Inflight: 1, Conns: 1},
		{Mode: workload.ModeRPC, Size: 64, Inflight: 1, Conns: 1},
		{Mode: workload.ModeRPC, Size: 64, Inflight: 64, Conns: 1},
		{Mode: workload.ModeConn, Size: 1, Inflight: 1, Conns: 1},
	}
}

// list splits a comma-separated flag. The names of providers contain semicolons.
func list(s string) []string {
	items := strings.Split(s, ",")
	for i := range items {
		items[i] = strings.TrimSpace(items[i])
	}
	return slices.DeleteFunc(items, func(s string) bool { return s == "" })
}

// numbers reads a comma-separated list of numbers from least to limit. Each may have a K or M, for
// KiB and MiB.
func numbers(s string, least, limit int) ([]int, error) {
	var out []int
	for _, item := range list(s) {
		digits, unit := item, 1
		switch item[len(item)-1] {
		case 'k', 'K':
			digits, unit = item[:len(item)-1], 1<<10
		case 'm', 'M':
			digits, unit = item[:len(item)-1], 1<<20
		}
		n, err := strconv.Atoi(digits)
		if err != nil || n < least || n > limit/unit {
			return nil, fmt.Errorf("%q is not a number from %d to %s", item, least, workload.SizeText(limit))
		}
		out = append(out, n*unit)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%q lists nothing", s)
	}
	return out, nil
}

func (p plan) withDefaults(rounds int, d time.Duration) plan {
	if p.rounds == 0 {
		p.rounds = rounds
	}
	if p.time == 0 {
		p.time = d
	}
	return p
}

// estimate returns about how long the plan takes.
func (p plan) estimate() time.Duration {
	var all time.Duration
	for _, c := range p.cases() {
		if c.Impossible() == "" {
			all += time.Duration(p.rounds) * p.job(c).Takes()
		}
	}
	return all
}

// maxPeers bounds the idle client processes.
const maxPeers = 500

// worksOf is workload.Works with the mode peers added, which comes last.
func (p plan) worksOf(modes []string, sizes, inflight, conns, idle []int) ([]workload.Case, error) {
	i := slices.Index(modes, workload.ModePeers)
	if i < 0 {
		return workload.Works(modes, sizes, inflight, conns)
	}
	if p.server != "" {
		return nil, errors.New("-c excludes the mode peers, whose processes are all on one machine")
	}
	works, err := workload.Works(slices.Delete(modes, i, i+1), sizes, inflight, conns)
	return append(works, workload.PeersWorks(idle)...), err
}

func (p plan) job(c workload.Case) load.Job {
	j := load.NewJob(c, p.host, p.time)
	j.Profile = p.profileDir
	return j
}
