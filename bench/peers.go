package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// modePeers is the flag's name for works of many client processes, each with a conn of its own, on
// one server process. The rows of these works have the modes lat, bw and idle. modePeers is also
// the mode of the processes themselves, which do all three.
const modePeers = "peers"

// maxPeers bounds the idle client processes.
const maxPeers = 500

// shmPeers is how many peers can be reached through shared memory at a time.
const shmPeers = rdmanet.DefaultMaxShmPeers

// peers returns how many client processes the work has, 0 if it is of the plain kind.
func (c cell) peers() int { return c.Idle + c.Busy }

// among returns the work c of one peer while idle others have a conn, too.
func (c cell) among(idle int) cell {
	c.Idle, c.Busy = idle, 1
	return c
}

// isAmong reports whether this is the work of one peer while idle ones are there.
func (c cell) isAmong() bool { return c.Busy == 1 && c.Idle > 0 }

// by returns the work c done by that many peers at once.
func (c cell) by(busy int) cell {
	c.Idle, c.Busy = 0, busy
	return c
}

// idlePeers returns the work of n peers that are only there, to see what they cost.
func idlePeers(n int) cell {
	return cell{Mode: modeIdle, Size: 1, Inflight: 1, Conns: 1, Idle: n}
}

// peersWorks returns one peer's work among each number of idle ones, the work of all of them at
// once, and what they cost when idle. The last is measured only for the largest number and for the
// largest that shared memory can have, since peers need seconds to give back what they do not use
// before their memory is read.
func peersWorks(idle []int) (works []cell) {
	idle = slices.Compact(slices.Sorted(slices.Values(idle)))
	for _, w := range []cell{lat64, bw64K} {
		for _, n := range idle {
			works = append(works, w.among(n))
		}
	}
	for _, w := range []cell{lat64, bw64K} {
		for _, n := range idle {
			if n > 0 { // 0 is there already
				works = append(works, w.by(n+1))
			}
		}
	}
	for i, n := range idle {
		last := i == len(idle)-1
		if n > 1 && (last || n <= shmPeers && idle[i+1] > shmPeers) {
			works = append(works, idlePeers(n))
		}
	}
	return works
}

// worksOf is allWorks with the mode peers added, which comes last.
func (p plan) worksOf(modes []string, sizes, inflight, conns, idle []int) ([]cell, error) {
	i := slices.Index(modes, modePeers)
	if i < 0 {
		return allWorks(modes, sizes, inflight, conns)
	}
	if p.server != "" {
		return nil, errors.New("-c excludes the mode peers, whose processes are all on one machine")
	}
	works, err := allWorks(slices.Delete(modes, i, i+1), sizes, inflight, conns)
	return append(works, peersWorks(idle)...), err
}

// notPossible says why a row cannot be measured on any machine. It is empty for all others.
func (c cell) notPossible() string {
	if c.Transport == transportRDMA && c.Provider == overShm.provider && c.peers() > shmPeers {
		return fmt.Sprintf("shm has at most %d peers (Transport.MaxShmPeers)", shmPeers)
	}
	return ""
}

// sharesProcesses reports whether the next row is measured by the same processes.
func (c cell) sharesProcesses(next cell) bool {
	return c.peers() > 0 && next.peers() > 0 && c.label() == next.label()
}

// peersText says which peers a work has.
func peersText(c cell) string {
	switch {
	case c.Busy > 1 && c.Idle == 0:
		return fmt.Sprintf(" by %d peers", c.Busy)
	case c.Busy > 0:
		return fmt.Sprintf(" among %d idle peers", c.Idle)
	case c.Idle > 0:
		return fmt.Sprintf(" of %d peers", c.Idle)
	}
	return ""
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
