package main

import "slices"

// A figure is one number of a result.
type figure struct {
	of     func(result) float64
	higher bool   // more is better
	unit   string // if it is not compared with another
}

var (
	p50        = figure{of: func(r result) float64 { return r.P50us }}
	p50Best    = figure{of: func(r result) float64 { return r.P50Best }}
	p99        = figure{of: func(r result) float64 { return r.P99us }}
	p99Pooled  = figure{of: func(r result) float64 { return r.P99Pooled }}
	p50inMs    = figure{of: func(r result) float64 { return r.P50us / 1000 }, unit: " ms"}
	coldInMs   = figure{of: func(r result) float64 { return r.ColdUs / 1000 }, unit: " ms"}
	mean       = figure{of: func(r result) float64 { return ratio(1e6, r.OpsPerS) }} // of one operation at a time
	rate       = figure{of: func(r result) float64 { return r.OpsPerS }, higher: true}
	cpuPerOp   = figure{of: func(r result) float64 { return r.CPUusPer }}
	cpuPerGB   = figure{of: func(r result) float64 { return r.CPUsPerGB }}
	allocs     = figure{of: func(r result) float64 { return r.Mallocs }}
	fairness   = figure{of: func(r result) float64 { return r.Fairness }, higher: true}
	cpuPercent = figure{of: func(r result) float64 { return r.CPUPercent }, unit: "%"}
	registered = figure{of: func(r result) float64 { return r.Registered / 1024 }, unit: " KiB"}
)

// The works that have targets.
var (
	lat64One = cell{Mode: modeLat, Size: 64, Inflight: 1, Conns: 1, OneCore: true}
	bw64     = cell{Mode: modeBW, Size: 64, Inflight: 1, Conns: 1}
	bw1M     = cell{Mode: modeBW, Size: 1 << 20, Inflight: 1, Conns: 1}
	zc1M     = cell{Mode: modeZC, Size: 1 << 20, Inflight: 1, Conns: 1}
	dialing  = cell{Mode: modeConn, Size: 1, Inflight: 1, Conns: 1}
	rpc64    = cell{Mode: modeRPC, Size: 64, Inflight: 1, Conns: 1}
	rpc64One = cell{Mode: modeRPC, Size: 64, Inflight: 1, Conns: 1, OneCore: true}
	rpc64x64 = cell{Mode: modeRPC, Size: 64, Inflight: 64, Conns: 1}
	rpc16K   = cell{Mode: modeRPC, Size: 16 << 10, Inflight: 1, Conns: 1}
	rpc64K   = cell{Mode: modeRPC, Size: 64 << 10, Inflight: 1, Conns: 1}
	rpc1M    = cell{Mode: modeRPC, Size: 1 << 20, Inflight: 1, Conns: 1}
	rpc1Mx8  = cell{Mode: modeRPC, Size: 1 << 20, Inflight: 8, Conns: 1}
	lat16K   = cell{Mode: modeLat, Size: 16 << 10, Inflight: 1, Conns: 1}
	lat64K   = cell{Mode: modeLat, Size: 64 << 10, Inflight: 1, Conns: 1}
	lat1M    = cell{Mode: modeLat, Size: 1 << 20, Inflight: 1, Conns: 1}
	body     = cell{Mode: modeHTTP, Size: bodySize, Inflight: 1, Conns: 1}
	get64    = cell{Mode: modeHTTP, Size: pageSize, Inflight: 1, Conns: 1}
	first    = cell{Mode: modeFirst, Size: 1, Inflight: 1, Conns: 1}
	busy64K  = bw64K.onBusyHost()
	busy1M   = bw1M.onBusyHost()
	idle1000 = cell{Mode: modeIdle, Size: 1, Inflight: 1, Conns: 1000}
)

func bw64KOn(conns int) cell {
	c := bw64K
	c.Conns = conns
	return c
}

// noAllocs is how many allocations an operation may have and still count as having none: the
// benchmark and Go's runtime allocate now and then.
const noAllocs = 0.01

// A target bounds one figure of one row, or the ratio of that figure to another row's or to that of
// a peer alone.
type target struct {
	what   string
	figure figure
	row    cell
	than   cell   // the row to compare with, if any
	other  figure // that row's figure, if not the same
	alone  bool   // the ratio is to a peer alone: see sample.Alone
	must   float64
	goal   float64 // at least as demanding; 0, like must, for none
}

// loopbackTargets are what the project measures itself by, on a machine with two
// cores.
var loopbackTargets = slices.Concat(quietTargets, busyTargets())

var quietTargets = []target{
	{what: "64 B round trip, p50, to TCP's", figure: p50, row: lat64.over(overShm), than: lat64.over(overTCP), must: 0.33, goal: 0.27},
	{what: "64 B round trip, p99, to TCP's", figure: p99, row: lat64.over(overShm), than: lat64.over(overTCP), must: 1},
	{what: "64 B one way, messages a second, to TCP's", figure: rate, row: bw64.over(overShm), than: bw64.over(overTCP), must: 3, goal: 6},
	{what: "64 KiB stream, to TCP's", figure: rate, row: bw64K.over(overShm), than: bw64K.over(overTCP), must: 5, goal: 8},
	{what: "64 KiB stream, to a Unix socket's", figure: rate, row: bw64K.over(overShm), than: bw64K.over(overUnix), must: 3, goal: 5},
	{what: "1 MiB stream, to TCP's", figure: rate, row: bw1M.over(overShm), than: bw1M.over(overTCP), must: 5, goal: 7},
	{what: "1 MiB stream, to a Unix socket's", figure: rate, row: bw1M.over(overShm), than: bw1M.over(overUnix), must: 3, goal: 4},
	{what: "16 KiB round trip, p50, to TCP's", figure: p50, row: lat16K.over(overShm), than: lat16K.over(overTCP), must: 0.4, goal: 0.2},
	{what: "64 KiB round trip, p50, to TCP's", figure: p50, row: lat64K.over(overShm), than: lat64K.over(overTCP), must: 0.4, goal: 0.2},
	{what: "1 MiB round trip, p50, to TCP's", figure: p50, row: lat1M.over(overShm), than: lat1M.over(overTCP), must: 0.4, goal: 0.2},
	{what: "1 GiB HTTP/1.1 body, to TCP's", figure: rate, row: body.over(overShm), than: body.over(overTCP), must: 2, goal: 3},
	{what: "busy host, 64 KiB stream, to TCP's", figure: rate, row: busy64K.over(overShm), than: busy64K.over(overTCP), must: 1.5, goal: 2},
	{what: "busy host, 64 KiB stream, to a Unix socket's", figure: rate, row: busy64K.over(overShm), than: busy64K.over(overUnix), must: 1, goal: 1.5},
	{what: "busy host, 1 MiB stream, to TCP's", figure: rate, row: busy1M.over(overShm), than: busy1M.over(overTCP), must: 1.5, goal: 2},
	{what: "busy host, 1 MiB stream, to a Unix socket's", figure: rate, row: busy1M.over(overShm), than: busy1M.over(overUnix), must: 1, goal: 1.5},
	{what: "64 KiB stream without mapped rings, to TCP's", figure: rate, row: bw64K.over(overFar), than: bw64K.over(overTCP), goal: 2.5},
	{what: "1 MiB stream without mapped rings, to TCP's", figure: rate, row: bw1M.over(overFar), than: bw1M.over(overTCP), goal: 1.6},
	{what: "1 MiB zero-copy stream, verified, to TCP's", figure: rate, row: zc1M.over(overShm), than: zc1M.over(overTCP), must: 2.5, goal: 3},
	{what: "dial, echo, close, a second, to TCP's", figure: rate, row: dialing.over(overShm), than: dialing.over(overTCP), must: 5, goal: 10},
	{what: "gRPC 64 B, p50, to TCP's best round", figure: p50, row: rpc64.over(overShm), than: rpc64.over(overTCP), other: p50Best, must: 0.65},
	{what: "gRPC 64 B, p50, to TCP's", figure: p50, row: rpc64.over(overShm), than: rpc64.over(overTCP), must: 0.4, goal: 0.2},
	{what: "gRPC 64 B, calls a second, to TCP's", figure: rate, row: rpc64.over(overShm), than: rpc64.over(overTCP), must: 1.8, goal: 3},
	{what: "gRPC 64 B, CPU a call, to TCP's", figure: cpuPerOp, row: rpc64.over(overShm), than: rpc64.over(overTCP), must: 1},
	{what: "gRPC 64 B, 64 in flight, calls a second, to TCP's", figure: rate, row: rpc64x64.over(overShm), than: rpc64x64.over(overTCP), must: 1.05, goal: 1.2},
	{what: "gRPC 64 B, 64 in flight, calls a second, to a Unix socket's", figure: rate, row: rpc64x64.over(overShm), than: rpc64x64.over(overUnix), must: 1, goal: 1.1},
	{what: "gRPC 64 B, 64 in flight, CPU a call, to TCP's", figure: cpuPerOp, row: rpc64x64.over(overShm), than: rpc64x64.over(overTCP), must: 1, goal: 0.8},
	{what: "gRPC 16 KiB, p50, to TCP's", figure: p50, row: rpc16K.over(overShm), than: rpc16K.over(overTCP), must: 0.6, goal: 0.4},
	{what: "gRPC 16 KiB, calls a second, to TCP's", figure: rate, row: rpc16K.over(overShm), than: rpc16K.over(overTCP), must: 1.4, goal: 2},
	{what: "gRPC 64 KiB, p50, to TCP's", figure: p50, row: rpc64K.over(overShm), than: rpc64K.over(overTCP), must: 0.6, goal: 0.4},
	{what: "gRPC 64 KiB, calls a second, to TCP's", figure: rate, row: rpc64K.over(overShm), than: rpc64K.over(overTCP), must: 1.4, goal: 2},
	{what: "HTTP/1.1 GET of 64 B, requests a second, to TCP's", figure: rate, row: get64.over(overShm), than: get64.over(overTCP), must: 2, goal: 5},
	{what: "first conn between two processes, p50", figure: p50inMs, row: first.over(overShm), must: 4, goal: 2},
	{what: "tcp;ofi_rxm, first conn between two processes, p50", figure: p50inMs, row: first.over(overTCPRxm), must: 2, goal: 1},
	{what: "first conn of a process, median", figure: coldInMs, row: first.over(overShm), goal: 4},
	{what: "tcp;ofi_rxm, first conn of a process, median", figure: coldInMs, row: first.over(overTCPRxm), goal: 2},
	{what: "gRPC 1 MiB, calls a second, to TCP's", figure: rate, row: rpc1M.over(overShm), than: rpc1M.over(overTCP), must: 1.2, goal: 1.5},
	{what: "gRPC 1 MiB, 8 in flight, calls a second, to TCP's", figure: rate, row: rpc1Mx8.over(overShm), than: rpc1Mx8.over(overTCP), must: 1.5, goal: 2},
	{what: "64 B round trip, CPU, to TCP's", figure: cpuPerOp, row: lat64.over(overShm), than: lat64.over(overTCP), must: 1, goal: 0.5},
	{what: "64 KiB stream, CPU a write, to TCP's", figure: cpuPerOp, row: bw64K.over(overShm), than: bw64K.over(overTCP), must: 0.4, goal: 0.25},
	{what: "1 MiB stream, CPU a GB, to TCP's", figure: cpuPerGB, row: bw1M.over(overShm), than: bw1M.over(overTCP), must: 1, goal: 0.5},

	{what: "tcp;ofi_rxm, 64 B round trip, p50, to TCP's", figure: p50, row: lat64.over(overTCPRxm), than: lat64.over(overTCP), must: 1.4, goal: 1.1},
	{what: "tcp;ofi_rxm, 64 KiB stream, to TCP's", figure: rate, row: bw64K.over(overTCPRxm), than: bw64K.over(overTCP), must: 1, goal: 1.4},
	{what: "net, 64 B round trip, p50, to TCP's", figure: p50, row: lat64.over(overNet), than: lat64.over(overTCP), must: 1.4, goal: 1.1},
	{what: "net, 64 KiB stream, to TCP's", figure: rate, row: bw64K.over(overNet), than: bw64K.over(overTCP), must: 1, goal: 1.4},
	{what: "one core, 64 B round trip, p50, to TCP's", figure: p50, row: lat64One.over(overShm), than: lat64One.over(overTCP), must: 1.5, goal: 1.2},
	{what: "one core, gRPC 64 B, p50, to TCP's", figure: p50, row: rpc64One.over(overShm), than: rpc64One.over(overTCP), must: 1.75, goal: 1.2},
	{what: "1000 idle conns, CPU of a core", figure: cpuPercent, row: idle1000.over(overShm), must: 1, goal: 0.2},
	{what: "1000 idle conns, registered memory a conn", figure: registered, row: idle1000.over(overShm), must: 4},
	{what: "64 KiB on 10 conns, to one conn's", figure: rate, row: bw64KOn(10).over(overShm), than: bw64K.over(overShm), must: 0.8, goal: 0.9},
	{what: "64 KiB on 10 conns, to TCP's", figure: rate, row: bw64KOn(10).over(overShm), than: bw64KOn(10).over(overTCP), must: 2.5, goal: 3.5},
	{what: "64 KiB on 10 conns, fairness", figure: fairness, row: bw64KOn(10).over(overShm), must: 0.9, goal: 0.97},
	{what: "64 KiB on 100 conns, to one conn's", figure: rate, row: bw64KOn(100).over(overShm), than: bw64K.over(overShm), must: 0.6, goal: 0.9},
	{what: "64 KiB on 100 conns, to TCP's", figure: rate, row: bw64KOn(100).over(overShm), than: bw64KOn(100).over(overTCP), must: 2.5, goal: 4},
	{what: "64 KiB on 100 conns, fairness", figure: fairness, row: bw64KOn(100).over(overShm), must: 0.9, goal: 0.97},
	{what: "64 KiB on 1000 conns, to one conn's", figure: rate, row: bw64KOn(1000).over(overShm), than: bw64K.over(overShm), must: 0.5, goal: 0.9},
	{what: "64 KiB on 1000 conns, to TCP's", figure: rate, row: bw64KOn(1000).over(overShm), than: bw64KOn(1000).over(overTCP), must: 1.7, goal: 3},
	{what: "64 KiB on 1000 conns, fairness", figure: fairness, row: bw64KOn(1000).over(overShm), must: 0.9, goal: 0.97},
	{what: "64 B round trip, allocations", figure: allocs, row: lat64.over(overShm), must: noAllocs},
	{what: "64 KiB stream, allocations a write", figure: allocs, row: bw64K.over(overShm), must: noAllocs},

	{what: "64 B round trip among 63 idle peers, p50, to alone", figure: p50, row: lat64.among(shmPeers - 1).over(overShm), alone: true, must: 1.1},
	{what: "64 KiB stream among 63 idle peers, to alone", figure: rate, row: bw64K.among(shmPeers - 1).over(overShm), alone: true, must: 0.91},
	{what: "tcp;ofi_rxm, 64 B round trip among 250 idle peers, p50, to alone", figure: p50, row: lat64.among(250).over(overTCPRxm), alone: true, must: 1.1},
	{what: "tcp;ofi_rxm, 64 KiB stream among 250 idle peers, to alone", figure: rate, row: bw64K.among(250).over(overTCPRxm), alone: true, must: 0.91},
	{what: "64 B round trips by 64 peers, a second, to TCP's", figure: rate, row: lat64.by(shmPeers).over(overShm), than: lat64.by(shmPeers).over(overTCP), must: 1},
	{what: "64 KiB streams by 64 peers, to TCP's", figure: rate, row: bw64K.by(shmPeers).over(overShm), than: bw64K.by(shmPeers).over(overTCP), must: 1},
}

// busyTargets returns targets for calls beside a program that computes on every CPU, to which a
// goroutine that polls loses its turn.
func busyTargets() (list []target) {
	for _, w := range []struct {
		what string
		cell cell
	}{
		{"64 B round trip", lat64}, {"16 KiB round trip", lat16K}, {"64 KiB round trip", lat64K}, {"1 MiB round trip", lat1M},
		{"gRPC 64 B", rpc64}, {"gRPC 64 B, 64 in flight", rpc64x64}, {"gRPC 16 KiB", rpc16K}, {"gRPC 64 KiB", rpc64K},
		{"gRPC 1 MiB", rpc1M}, {"gRPC 1 MiB, 8 in flight", rpc1Mx8}, {"HTTP/1.1 GET of 64 B", get64}, {"1 GiB HTTP/1.1 body", body},
	} {
		row := w.cell.onBusyHost().over(overShm)
		tcp, unix := w.cell.onBusyHost().over(overTCP), w.cell.onBusyHost().over(overUnix)
		list = append(list,
			target{what: "busy host, " + w.what + ", a second, to TCP's", figure: rate, row: row, than: tcp, must: 1, goal: 1.5},
			target{what: "busy host, " + w.what + ", a second, to a Unix socket's", figure: rate, row: row, than: unix, must: 0.9})
		if w.cell.Size < bodySize { // of bodies there are too few
			list = append(list, target{what: "busy host, " + w.what + ", p99 of all rounds, to TCP's", figure: p99Pooled, row: row, than: tcp, must: 1.2})
		}
	}
	return list
}

// verbsTargets are for an RDMA device, Soft-RoCE included, where TCP goes over
// the same wire.
var verbsTargets = []target{
	{what: "verbs;ofi_rxm, 64 B round trip, p50, to TCP's", figure: p50, row: lat64.over(overVerbs), than: lat64.over(overTCP), must: 0.2},
	{what: "verbs;ofi_rxm, 64 B round trip, mean, to rsockets'", figure: mean, row: lat64.over(overVerbs), than: lat64.over(overRsockets), must: 2.5},
	{what: "verbs;ofi_rxm, 64 KiB stream, to TCP's", figure: rate, row: bw64K.over(overVerbs), than: bw64K.over(overTCP), must: 1},
	{what: "verbs;ofi_rxm, 64 KiB stream, to rsockets'", figure: rate, row: bw64K.over(overVerbs), than: bw64K.over(overRsockets), goal: 1},
}
