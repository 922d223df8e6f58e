package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The kinds of work that are measured.
const (
	modeLat  = "lat"  // a round trip of size bytes
	modeBW   = "bw"   // a one-way stream in writes of size bytes
	modeRPC  = "rpc"  // a gRPC unary call that echoes size bytes
	modeConn = "conn" // dial, echo one byte, close
	modeZC   = "zc"   // like bw, stamped and verified, by the zero-copy calls
	modeHTTP = "http" // GETs of size bytes over HTTP/1.1
	// modeFirst is the first conn of a client process to a server process, with a first byte there
	// and back. One client meets several servers. libfabric's providers are listed once before
	// that, since it takes long.
	modeFirst = "first"
	modeIdle  = "idle" // conns that do nothing, or peers
)

// The transports.
const (
	transportTCP      = "tcp"
	transportUnix     = "unix"
	transportRDMA     = "rdma"
	transportRsockets = "rsockets" // measured by rstream
	// transportFresh is rdma with a control connection over TCP for every conn, where
	// rdma has one for all conns to a peer. Only dialing shows the difference.
	transportFresh = "rdma-noreuse"
	// transportFar is rdma between processes that do not map each other's memory, as if they were
	// on two hosts. Only large data over shared memory shows the difference.
	transportFar = "rdma-unmapped"
)

// A cell is one row of the table: one kind of work on one transport.
type cell struct {
	Mode      string `json:"mode"`
	Transport string `json:"transport"` // one of the transports above
	Provider  string `json:"provider"`  // libfabric's name for it; empty unless it is rdma
	Size      int    `json:"size"`      // bytes per write, each way for lat and rpc
	Inflight  int    `json:"inflight"`  // calls at once on each conn, for rpc
	Conns     int    `json:"conns"`     // conns used at once
	OneCore   bool   `json:"one_core"`  // all processes run on one CPU
	Load      bool   `json:"busy_host"` // a program that computes runs on every CPU
	// Client processes with a conn each: those that only wait, and those that work at the same
	// time. Both are 0 if one client process has all conns.
	Idle int `json:"idle_peers,omitempty"`
	Busy int `json:"busy_peers,omitempty"`
}

// work returns the cell without its transport: rows of one work are compared.
func (c cell) work() cell {
	c.Transport, c.Provider = "", ""
	return c
}

func (c cell) String() string {
	text := fmt.Sprintf("%s %s, %s, %d conns, %d in flight", c.Mode, sizeText(c.Size), c.label(), c.Conns, c.Inflight)
	if c.peers() > 0 {
		text += fmt.Sprintf(", %d idle peers, %d busy", c.Idle, c.Busy)
	}
	if c.OneCore {
		text += ", one core"
	}
	if c.Load {
		text += ", on a busy host"
	}
	return text
}

func (c cell) label() string {
	if c.Provider == "" {
		return c.Transport
	}
	return c.Transport + "/" + c.Provider
}

// A plan says what to measure and for how long.
type plan struct {
	works     []cell   // without transports
	targets   []target // measure what they need instead, and judge it
	host      string   // where servers listen
	providers []string
	rounds    int
	time      time.Duration // measured time of a cell in one round
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

// cells lists the rows of the table. All transports of one work follow each other, so that they are
// measured under conditions that are as similar as possible.
func (p plan) cells() []cell {
	if p.targets != nil {
		return targetCells(p.targets, p.providers)
	}
	var all []cell
	for _, w := range p.works {
		for _, transport := range p.sockets(w) {
			w.Transport, w.Provider = transport, ""
			all = append(all, w)
		}
		for _, provider := range p.providers {
			w.Transport, w.Provider = transportRDMA, provider
			all = append(all, w)
			if w.Mode == modeConn {
				w.Transport = transportFresh
				all = append(all, w)
			}
			if provider == overShm.provider && p.server == "" && w.peers() == 0 && w.Size >= 16<<10 {
				w.Transport = transportFar
				all = append(all, w)
			}
		}
	}
	return all
}

// sockets returns the transports to compare w with.
func (p plan) sockets(w cell) []string {
	if p.server != "" {
		return []string{transportTCP}
	}
	return []string{transportTCP, transportUnix}
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

// demoWorks is a selection of works that takes about a minute on five transports.
func demoWorks() []cell {
	return []cell{
		{Mode: modeLat, Size: 64, Inflight: 1, Conns: 1},
		{Mode: modeLat, Size: 64 << 10, Inflight: 1, Conns: 1},
		{Mode: modeBW, Size: 64 << 10, Inflight: 1, Conns: 1},
		{Mode: modeBW, Size: 1 << 20, Inflight: 1, Conns: 1},
		{Mode: modeRPC, Size: 64, Inflight: 1, Conns: 1},
		{Mode: modeRPC, Size: 64, Inflight: 64, Conns: 1},
		{Mode: modeConn, Size: 1, Inflight: 1, Conns: 1},
	}
}

// allWorks combines modes with the sizes, conns and calls in flight that mean
// something to each.
func allWorks(modes []string, sizes, inflight, conns []int) ([]cell, error) {
	var works []cell
	for _, mode := range modes {
		ofMode, calls := sizes, []int{1}
		switch mode {
		case modeLat, modeBW:
		case modeRPC:
			calls = inflight
		case modeZC:
			for _, size := range sizes {
				if _, err := stride(size); err != nil {
					return nil, err
				}
			}
		case modeConn, modeIdle, modeFirst:
			ofMode = []int{1}
		case modeHTTP:
			ofMode = []int{pageSize, bodySize}
		default:
			return nil, fmt.Errorf("unknown mode %q: have lat, bw, zc, rpc, http, conn, idle, and for one machine first and peers", mode)
		}
		for _, size := range ofMode {
			for _, n := range conns {
				for _, k := range calls {
					works = append(works, cell{Mode: mode, Size: size, Conns: n, Inflight: k})
				}
			}
		}
	}
	return works, nil
}

// list splits a comma-separated flag. The names of providers contain semicolons.
func list(s string) []string {
	items := strings.Split(s, ",")
	for i := range items {
		items[i] = strings.TrimSpace(items[i])
	}
	return slices.DeleteFunc(items, func(s string) bool { return s == "" })
}

// numbers reads a comma-separated list of positive numbers. Each may have a K or M, for KiB and
// MiB, and is at most limit.
func numbers(s string, limit int) ([]int, error) { return numbersFrom(1, s, limit) }

// numbersFrom is numbers with another minimum.
func numbersFrom(least int, s string, limit int) ([]int, error) {
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
			return nil, fmt.Errorf("%q is not a number from %d to %s", item, least, sizeText(limit))
		}
		out = append(out, n*unit)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%q lists nothing", s)
	}
	return out, nil
}

func sizeText(n int) string {
	switch {
	case n >= 1<<20 && n%(1<<20) == 0:
		return strconv.Itoa(n>>20) + "M"
	case n >= 1<<10 && n%(1<<10) == 0:
		return strconv.Itoa(n>>10) + "K"
	}
	return strconv.Itoa(n)
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

// takes returns about how long j takes, including half a second to start and end the two processes.
// Peers serve several rows, each of which is charged a part of the time that it takes to start and
// end them and to mark the server's memory.
func (j job) takes() time.Duration {
	d := j.WarmUp + j.Time
	if j.Mode == modeFirst {
		return firstConns * (2*startTime + firstPause)
	}
	if j.Size == bodySize { // a body takes its time, and each conn moves at least one when warming up and one when measured
		d += time.Duration(j.Conns) * bodyTime
	}
	switch {
	case j.peers() == 0:
		return d + 500*time.Millisecond
	case j.Mode == modeIdle:
		return d + settleTime/2
	case j.Busy == 1 && j.Transport == transportRDMA:
		d += time.Duration(j.Idle) * startTime / 3
	}
	d += 2 * j.lead()
	if j.isAmong() { // and the same for a peer alone
		d += j.WarmUp + j.Time + 2*j.lead()
	}
	return d
}

// estimate returns about how long the plan takes.
func (p plan) estimate() time.Duration {
	var all time.Duration
	for _, c := range p.cells() {
		if c.notPossible() == "" {
			all += time.Duration(p.rounds) * p.job(c).takes()
		}
	}
	return all
}

// job says how c is measured. Idle conns get more time than others, and so do hundreds of conns,
// each of which is to have its turn many times.
func (p plan) job(c cell) job {
	d := p.time
	if c.Mode == modeIdle || c.Conns >= 100 || c.Busy >= 100 {
		d *= 5
	}
	j := job{cell: c, Host: p.host, WarmUp: d / 4, Time: d, Profile: p.profileDir}
	if c.Mode == modeFirst {
		j.WarmUp = 0
	}
	if c.Mode == modeIdle && c.Idle > 0 {
		j.WarmUp = settleTime
	}
	return j
}
