package main

import (
	"cmp"
	"slices"

	"github.com/seed202c38ff/fabricnet/bench/internal/workload"
)

// shareProcesses reports whether two rows that follow each other are measured by the same processes.
func shareProcesses(c, next workload.Case) bool {
	return c.Peers() > 0 && next.Peers() > 0 && c.Label() == next.Label()
}

// peersSequence returns the order in which a round goes through rows with peers. Rows of one
// transport follow each other, since its processes take long to start. First come the rows in which
// no peer but the first is ever busy, with more and more peers, and then those in which all are
// busy, with fewer and fewer.
func peersSequence(cases []workload.Case, round int) (order []int) {
	var labels []string
	for _, c := range cases {
		if !slices.Contains(labels, c.Label()) {
			labels = append(labels, c.Label())
		}
	}
	for i := range labels {
		label := labels[(i+round)%len(labels)]
		var rows []int
		for k, c := range cases {
			if c.Label() == label {
				rows = append(rows, k)
			}
		}
		slices.SortStableFunc(rows, func(a, b int) int { return compareStages(cases[a], cases[b]) })
		order = append(order, rows...)
	}
	return order
}

func compareStages(a, b workload.Case) int {
	switch aAll, bAll := a.Busy > 1, b.Busy > 1; {
	case aAll && bAll:
		return cmp.Compare(b.Peers(), a.Peers())
	case aAll:
		return 1
	case bAll:
		return -1
	}
	return cmp.Compare(a.Peers(), b.Peers())
}

// sequence returns the order in which a round, counted from 0, goes through the cases. Each round
// begins with another transport, so that none always follows the same neighbour.
func sequence(cases []workload.Case, round int) []int {
	var order []int
	for start := 0; start < len(cases); {
		n := 0
		for start+n < len(cases) && cases[start+n].Peers() > 0 {
			n++
		}
		for _, i := range peersSequence(cases[start:start+n], round) {
			order = append(order, start+i)
		}
		if start += n; start == len(cases) {
			break
		}
		n = 1
		for start+n < len(cases) && cases[start+n].Work() == cases[start].Work() {
			n++
		}
		for i := range n {
			order = append(order, start+(i+round)%n)
		}
		start += n
	}
	return order
}
