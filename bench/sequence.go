package main

import (
	"cmp"
	"slices"
)

// sharesProcesses reports whether the next row is measured by the same processes.
func (c cell) sharesProcesses(next cell) bool {
	return c.peers() > 0 && next.peers() > 0 && c.label() == next.label()
}

// peersSequence returns the order in which a round goes through rows with peers. Rows of one
// transport follow each other, since its processes take long to start. First come the rows in which
// no peer but the first is ever busy, with more and more peers, and then those in which all are
// busy, with fewer and fewer.
func peersSequence(cells []cell, round int) (order []int) {
	var labels []string
	for _, c := range cells {
		if !slices.Contains(labels, c.label()) {
			labels = append(labels, c.label())
		}
	}
	for i := range labels {
		label := labels[(i+round)%len(labels)]
		var rows []int
		for k, c := range cells {
			if c.label() == label {
				rows = append(rows, k)
			}
		}
		slices.SortStableFunc(rows, func(a, b int) int { return compareStages(cells[a], cells[b]) })
		order = append(order, rows...)
	}
	return order
}

func compareStages(a, b cell) int {
	switch aAll, bAll := a.Busy > 1, b.Busy > 1; {
	case aAll && bAll:
		return cmp.Compare(b.peers(), a.peers())
	case aAll:
		return 1
	case bAll:
		return -1
	}
	return cmp.Compare(a.peers(), b.peers())
}

// sequence returns the order in which a round, counted from 0, goes through the cells. Each round
// begins with another transport, so that none always follows the same neighbour.
func sequence(cells []cell, round int) []int {
	var order []int
	for start := 0; start < len(cells); {
		n := 0
		for start+n < len(cells) && cells[start+n].peers() > 0 {
			n++
		}
		for _, i := range peersSequence(cells[start:start+n], round) {
			order = append(order, start+i)
		}
		if start += n; start == len(cells) {
			break
		}
		n = 1
		for start+n < len(cells) && cells[start+n].work() == cells[start].work() {
			n++
		}
		for i := range n {
			order = append(order, start+(i+round)%n)
		}
		start += n
	}
	return order
}
