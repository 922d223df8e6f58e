package report

import (
	"slices"

	"github.com/seed202c38ff/fabricnet/bench/internal/workload"
)

// A figure is one number of a result.
type figure struct {
	of     func(Result) float64
	higher bool   // more is better
	unit   string // if it is not compared with another
}

var (
	p50        = figure{of: func(r Result) float64 { return r.P50us }}
	p50Best    = figure{of: func(r Result) float64 { return r.P50Best }}
	p99        = figure{of: func(r Result) float64 { return r.P99us }}
	p99Pooled  = figure{of: func(r Result) float64 { return r.P99Pooled }}
	p50inMs    = figure{of: func(r Result) float64 { return r.P50us / 1000 }, unit: " ms"}
	coldInMs   = figure{of: func(r Result) float64 { return r.ColdUs / 1000 }, unit: " ms"}
	mean       = figure{of: func(r Result) float64 { return ratio(1e6, r.OpsPerS) }} // of one operation at a time
	rate       = figure{of: func(r Result) float64 { return r.OpsPerS }, higher: true}
	cpuPerOp   = figure{of: func(r Result) float64 { return r.CPUusPer }}
	cpuPerGB   = figure{of: func(r Result) float64 { return r.CPUsPerGB }}
	allocs     = figure{of: func(r Result) float64 { return r.Mallocs }}
	fairness   = figure{of: func(r Result) float64 { return r.Fairness }, higher: true}
	cpuPercent = figure{of: func(r Result) float64 { return r.CPUPercent }, unit: "%"}
	registered = figure{of: func(r Result) float64 { return r.Registered / 1024 }, unit: " KiB"}
)

// The works that have targets.
var (
	lat64One = workload.Case{Mode: workload.ModeLat, Size: 64, Inflight: 1, Conns: 1, OneCore: true}
	bw64     = workload.Case{Mode: workload.ModeBW, Size: 64, Inflight: 1, Conns: 1}
	bw1M     = workload.Case{Mode: workload.ModeBW, Size: 1 << 20, Inflight: 1, Conns: 1}
	zc1M     = workload.Case{Mode: workload.ModeZC, Size: 1 << 20, Inflight: 1, Conns: 1}
	dialing  = workload.Case{Mode: workload.ModeConn, Size: 1, Inflight: 1, Conns: 1}
	rpc64    = workload.Case{Mode: workload.ModeRPC, Size: 64, Inflight: 1, Conns: 1}
	rpc64One = workload.Case{Mode: workload.ModeRPC, Size: 64, Inflight: 1, Conns: 1, OneCore: true}
	rpc64x64 = workload.Case{Mode: workload.ModeRPC, Size: 64, Inflight: 64, Conns: 1}
	rpc16K   = workload.Case{Mode: workload.ModeRPC, Size: 16 << 10, Inflight: 1, Conns: 1}
	rpc64K   = workload.Case{Mode: workload.ModeRPC, Size: 64 << 10, Inflight: 1, Conns: 1}
	rpc1M    = workload.Case{Mode: workload.ModeRPC, Size: 1 << 20, Inflight: 1, Conns: 1}
	rpc1Mx8  = workload.Case{Mode: workload.ModeRPC, Size: 1 << 20, Inflight: 8, Conns: 1}
	lat16K   = workload.Case{Mode: workload.ModeLat, Size: 16 << 10, Inflight: 1, Conns: 1}
	lat64K   = workload.Case{Mode: workload.ModeLat, Size: 64 << 10, Inflight: 1, Conns: 1}
	lat1M    = workload.Case{Mode: workload.ModeLat, Size: 1 << 20, Inflight: 1, Conns: 1}
	body     = workload.Case{Mode: workload.ModeHTTP, Size: workload.BodySize, Inflight: 1, Conns: 1}
	get64    = workload.Case{Mode: workload.ModeHTTP, Size: workload.PageSize, Inflight: 1, Conns: 1}
	first    = workload.Case{Mode: workload.ModeFirst, Size: 1, Inflight: 1, Conns: 1}
	busy64K  = workload.BW64K.OnBusyHost()
	busy1M   = bw1M.OnBusyHost()
	idle1000 = workload.Case{Mode: workload.ModeIdle, Size: 1, Inflight: 1, Conns: 1000}
)

func bw64KOn(conns int) workload.Case {
	c := workload.BW64K
	c.Conns = conns
	return c
}

// noAllocs is how many allocations an operation may have and still count as having none: the
// benchmark and Go's runtime allocate now and then.
const noAllocs = 0.01

// A Target bounds one figure of one row, or the ratio of that figure to another row's or to that of
// a peer alone.
type Target struct {
	what   string
	figure figure
	row    workload.Case
	than   workload.Case // the row to compare with, if any
	other  figure        // that row's figure, if not the same
	alone  bool          // the ratio is to a peer alone: see sample.Alone
	must   float64
	goal   float64 // at least as demanding; 0, like must, for none
}

// LoopbackTargets are what the project measures itself by, on a machine with two
// cores.
var LoopbackTargets = slices.Concat(quietTargets, busyTargets())

var quietTargets = []Target{
	{what: "64 B round trip, p50, to TCP's", figure: p50, row: workload.Lat64.Over(workload.Shm), than: workload.Lat64.Over(workload.TCP), must: 0.33, goal: 0.27},
	{what: "64 B round trip, p99, to TCP's", figure: p99, row: workload.Lat64.Over(workload.Shm), than: workload.Lat64.Over(workload.TCP), must: 1},
	{what: "64 B one way, messages a second, to TCP's", figure: rate, row: bw64.Over(workload.Shm), than: bw64.Over(workload.TCP), must: 3, goal: 6},
	{what: "64 KiB stream, to TCP's", figure: rate, row: workload.BW64K.Over(workload.Shm), than: workload.BW64K.Over(workload.TCP), must: 5, goal: 8},
	{what: "64 KiB stream, to a Unix socket's", figure: rate, row: workload.BW64K.Over(workload.Shm), than: workload.BW64K.Over(workload.Unix), must: 3, goal: 5},
	{what: "1 MiB stream, to TCP's", figure: rate, row: bw1M.Over(workload.Shm), than: bw1M.Over(workload.TCP), must: 5, goal: 7},
	{what: "1 MiB stream, to a Unix socket's", figure: rate, row: bw1M.Over(workload.Shm), than: bw1M.Over(workload.Unix), must: 3, goal: 4},
	{what: "16 KiB round trip, p50, to TCP's", figure: p50, row: lat16K.Over(workload.Shm), than: lat16K.Over(workload.TCP), must: 0.4, goal: 0.2},
	{what: "64 KiB round trip, p50, to TCP's", figure: p50, row: lat64K.Over(workload.Shm), than: lat64K.Over(workload.TCP), must: 0.4, goal: 0.2},
	{what: "1 MiB round trip, p50, to TCP's", figure: p50, row: lat1M.Over(workload.Shm), than: lat1M.Over(workload.TCP), must: 0.4, goal: 0.2},
	{what: "1 GiB HTTP/1.1 body, to TCP's", figure: rate, row: body.Over(workload.Shm), than: body.Over(workload.TCP), must: 2, goal: 3},
	{what: "busy host, 64 KiB stream, to TCP's", figure: rate, row: busy64K.Over(workload.Shm), than: busy64K.Over(workload.TCP), must: 1.5, goal: 2},
	{what: "busy host, 64 KiB stream, to a Unix socket's", figure: rate, row: busy64K.Over(workload.Shm), than: busy64K.Over(workload.Unix), must: 1, goal: 1.5},
	{what: "busy host, 1 MiB stream, to TCP's", figure: rate, row: busy1M.Over(workload.Shm), than: busy1M.Over(workload.TCP), must: 1.5, goal: 2},
	{what: "busy host, 1 MiB stream, to a Unix socket's", figure: rate, row: busy1M.Over(workload.Shm), than: busy1M.Over(workload.Unix), must: 1, goal: 1.5},
	{what: "1 MiB zero-copy stream, verified, to TCP's", figure: rate, row: zc1M.Over(workload.Shm), than: zc1M.Over(workload.TCP), must: 2.5, goal: 3},
	{what: "dial, echo, close, a second, to TCP's", figure: rate, row: dialing.Over(workload.Shm), than: dialing.Over(workload.TCP), must: 5, goal: 10},
	{what: "gRPC 64 B, p50, to TCP's best round", figure: p50, row: rpc64.Over(workload.Shm), than: rpc64.Over(workload.TCP), other: p50Best, must: 0.65},
	{what: "gRPC 64 B, p50, to TCP's", figure: p50, row: rpc64.Over(workload.Shm), than: rpc64.Over(workload.TCP), must: 0.4, goal: 0.2},
	{what: "gRPC 64 B, calls a second, to TCP's", figure: rate, row: rpc64.Over(workload.Shm), than: rpc64.Over(workload.TCP), must: 1.8, goal: 3},
	{what: "gRPC 64 B, CPU a call, to TCP's", figure: cpuPerOp, row: rpc64.Over(workload.Shm), than: rpc64.Over(workload.TCP), must: 1},
	{what: "gRPC 64 B, 64 in flight, calls a second, to TCP's", figure: rate, row: rpc64x64.Over(workload.Shm), than: rpc64x64.Over(workload.TCP), must: 1.05, goal: 1.2},
	{what: "gRPC 64 B, 64 in flight, calls a second, to a Unix socket's", figure: rate, row: rpc64x64.Over(workload.Shm), than: rpc64x64.Over(workload.Unix), must: 1, goal: 1.1},
	{what: "gRPC 64 B, 64 in flight, CPU a call, to TCP's", figure: cpuPerOp, row: rpc64x64.Over(workload.Shm), than: rpc64x64.Over(workload.TCP), must: 1, goal: 0.8},
	{what: "gRPC 16 KiB, p50, to TCP's", figure: p50, row: rpc16K.Over(workload.Shm), than: rpc16K.Over(workload.TCP), must: 0.6, goal: 0.4},
	{what: "gRPC 16 KiB, calls a second, to TCP's", figure: rate, row: rpc16K.Over(workload.Shm), than: rpc16K.Over(workload.TCP), must: 1.4, goal: 2},
	{what: "gRPC 64 KiB, p50, to TCP's", figure: p50, row: rpc64K.Over(workload.Shm), than: rpc64K.Over(workload.TCP), must: 0.6, goal: 0.4},
	{what: "gRPC 64 KiB, calls a second, to TCP's", figure: rate, row: rpc64K.Over(workload.Shm), than: rpc64K.Over(workload.TCP), must: 1.4, goal: 2},
	{what: "HTTP/1.1 GET of 64 B, requests a second, to TCP's", figure: rate, row: get64.Over(workload.Shm), than: get64.Over(workload.TCP), must: 2, goal: 5},
	{what: "first conn between two processes, p50", figure: p50inMs, row: first.Over(workload.Shm), must: 4, goal: 2},
	{what: "tcp;ofi_rxm, first conn between two processes, p50", figure: p50inMs, row: first.Over(workload.TCPRxm), must: 2, goal: 1},
	{what: "first conn of a process, median", figure: coldInMs, row: first.Over(workload.Shm), goal: 4},
	{what: "tcp;ofi_rxm, first conn of a process, median", figure: coldInMs, row: first.Over(workload.TCPRxm), goal: 2},
	{what: "gRPC 1 MiB, calls a second, to TCP's", figure: rate, row: rpc1M.Over(workload.Shm), than: rpc1M.Over(workload.TCP), must: 1.2, goal: 1.5},
	{what: "gRPC 1 MiB, 8 in flight, calls a second, to TCP's", figure: rate, row: rpc1Mx8.Over(workload.Shm), than: rpc1Mx8.Over(workload.TCP), must: 1.5, goal: 2},
	{what: "64 B round trip, CPU, to TCP's", figure: cpuPerOp, row: workload.Lat64.Over(workload.Shm), than: workload.Lat64.Over(workload.TCP), must: 1, goal: 0.5},
	{what: "64 KiB stream, CPU a write, to TCP's", figure: cpuPerOp, row: workload.BW64K.Over(workload.Shm), than: workload.BW64K.Over(workload.TCP), must: 0.4, goal: 0.25},
	{what: "1 MiB stream, CPU a GB, to TCP's", figure: cpuPerGB, row: bw1M.Over(workload.Shm), than: bw1M.Over(workload.TCP), must: 1, goal: 0.5},

	{what: "tcp;ofi_rxm, 64 B round trip, p50, to TCP's", figure: p50, row: workload.Lat64.Over(workload.TCPRxm), than: workload.Lat64.Over(workload.TCP), must: 1.4, goal: 1.1},
	{what: "tcp;ofi_rxm, 64 KiB stream, to TCP's", figure: rate, row: workload.BW64K.Over(workload.TCPRxm), than: workload.BW64K.Over(workload.TCP), must: 1, goal: 1.4},
	{what: "net, 64 B round trip, p50, to TCP's", figure: p50, row: workload.Lat64.Over(workload.Net), than: workload.Lat64.Over(workload.TCP), must: 1.4, goal: 1.1},
	{what: "net, 64 KiB stream, to TCP's", figure: rate, row: workload.BW64K.Over(workload.Net), than: workload.BW64K.Over(workload.TCP), must: 1, goal: 1.4},
	{what: "one core, 64 B round trip, p50, to TCP's", figure: p50, row: lat64One.Over(workload.Shm), than: lat64One.Over(workload.TCP), must: 1.5, goal: 1.2},
	{what: "one core, gRPC 64 B, p50, to TCP's", figure: p50, row: rpc64One.Over(workload.Shm), than: rpc64One.Over(workload.TCP), must: 1.75, goal: 1.2},
	{what: "1000 idle conns, CPU of a core", figure: cpuPercent, row: idle1000.Over(workload.Shm), must: 1, goal: 0.2},
	{what: "1000 idle conns, registered memory a conn", figure: registered, row: idle1000.Over(workload.Shm), must: 4},
	{what: "64 KiB on 10 conns, to one conn's", figure: rate, row: bw64KOn(10).Over(workload.Shm), than: workload.BW64K.Over(workload.Shm), must: 0.8, goal: 0.9},
	{what: "64 KiB on 10 conns, to TCP's", figure: rate, row: bw64KOn(10).Over(workload.Shm), than: bw64KOn(10).Over(workload.TCP), must: 2.5, goal: 3.5},
	{what: "64 KiB on 10 conns, fairness", figure: fairness, row: bw64KOn(10).Over(workload.Shm), must: 0.9, goal: 0.97},
	{what: "64 KiB on 100 conns, to one conn's", figure: rate, row: bw64KOn(100).Over(workload.Shm), than: workload.BW64K.Over(workload.Shm), must: 0.6, goal: 0.9},
	{what: "64 KiB on 100 conns, to TCP's", figure: rate, row: bw64KOn(100).Over(workload.Shm), than: bw64KOn(100).Over(workload.TCP), must: 2.5, goal: 4},
	{what: "64 KiB on 100 conns, fairness", figure: fairness, row: bw64KOn(100).Over(workload.Shm), must: 0.9, goal: 0.97},
	{what: "64 KiB on 1000 conns, to one conn's", figure: rate, row: bw64KOn(1000).Over(workload.Shm), than: workload.BW64K.Over(workload.Shm), must: 0.5, goal: 0.9},
	{what: "64 KiB on 1000 conns, to TCP's", figure: rate, row: bw64KOn(1000).Over(workload.Shm), than: bw64KOn(1000).Over(workload.TCP), must: 1.7, goal: 3},
	{what: "64 KiB on 1000 conns, fairness", figure: fairness, row: bw64KOn(1000).Over(workload.Shm), must: 0.9, goal: 0.97},
	{what: "64 B round trip, allocations", figure: allocs, row: workload.Lat64.Over(workload.Shm), must: noAllocs},
	{what: "64 KiB stream, allocations a write", figure: allocs, row: workload.BW64K.Over(workload.Shm), must: noAllocs},

	{what: "64 B round trip among 63 idle peers, p50, to alone", figure: p50, row: workload.Lat64.Among(workload.ShmPeers - 1).Over(workload.Shm), alone: true, must: 1.1},
	{what: "64 KiB stream among 63 idle peers, to alone", figure: rate, row: workload.BW64K.Among(workload.ShmPeers - 1).Over(workload.Shm), alone: true, must: 0.91},
	{what: "tcp;ofi_rxm, 64 B round trip among 250 idle peers, p50, to alone", figure: p50, row: workload.Lat64.Among(250).Over(workload.TCPRxm), alone: true, must: 1.1},
	{what: "tcp;ofi_rxm, 64 KiB stream among 250 idle peers, to alone", figure: rate, row: workload.BW64K.Among(250).Over(workload.TCPRxm), alone: true, must: 0.91},
	{what: "64 B round trips by 64 peers, a second, to TCP's", figure: rate, row: workload.Lat64.By(workload.ShmPeers).Over(workload.Shm), than: workload.Lat64.By(workload.ShmPeers).Over(workload.TCP), must: 1},
	{what: "64 KiB streams by 64 peers, to TCP's", figure: rate, row: workload.BW64K.By(workload.ShmPeers).Over(workload.Shm), than: workload.BW64K.By(workload.ShmPeers).Over(workload.TCP), must: 1},
}

// busyTargets returns targets for calls beside a program that computes on every CPU, to which a
// goroutine that polls loses its turn.
func busyTargets() (list []Target) {
	for _, w := range []struct {
		what string
		work workload.Case
	}{
		{"64 B round trip", workload.Lat64}, {"16 KiB round trip", lat16K}, {"64 KiB round trip", lat64K}, {"1 MiB round trip", lat1M},
		{"gRPC 64 B", rpc64}, {"gRPC 64 B, 64 in flight", rpc64x64}, {"gRPC 16 KiB", rpc16K}, {"gRPC 64 KiB", rpc64K},
		{"gRPC 1 MiB", rpc1M}, {"gRPC 1 MiB, 8 in flight", rpc1Mx8}, {"HTTP/1.1 GET of 64 B", get64}, {"1 GiB HTTP/1.1 body", body},
	} {
		row := w.work.OnBusyHost().Over(workload.Shm)
		tcp, unix := w.work.OnBusyHost().Over(workload.TCP), w.work.OnBusyHost().Over(workload.Unix)
		list = append(list,
			Target{what: "busy host, " + w.what + ", a second, to TCP's", figure: rate, row: row, than: tcp, must: 1, goal: 1.5},
			Target{what: "busy host, " + w.what + ", a second, to a Unix socket's", figure: rate, row: row, than: unix, must: 0.9})
		if w.work.Size < workload.BodySize { // of bodies there are too few
			list = append(list, Target{what: "busy host, " + w.what + ", p99 of all rounds, to TCP's", figure: p99Pooled, row: row, than: tcp, must: 1.2})
		}
	}
	return list
}

// VerbsTargets are for an RDMA device, Soft-RoCE included, where TCP goes over
// the same wire.
var VerbsTargets = []Target{
	{what: "verbs;ofi_rxm, 64 B round trip, p50, to TCP's", figure: p50, row: workload.Lat64.Over(workload.Verbs), than: workload.Lat64.Over(workload.TCP), must: 0.2},
	{what: "verbs;ofi_rxm, 64 B round trip, mean, to rsockets'", figure: mean, row: workload.Lat64.Over(workload.Verbs), than: workload.Lat64.Over(workload.Rsockets), must: 2.5},
	{what: "verbs;ofi_rxm, 64 KiB stream, to TCP's", figure: rate, row: workload.BW64K.Over(workload.Verbs), than: workload.BW64K.Over(workload.TCP), must: 1},
	{what: "verbs;ofi_rxm, 64 KiB stream, to rsockets'", figure: rate, row: workload.BW64K.Over(workload.Verbs), than: workload.BW64K.Over(workload.Rsockets), goal: 1},
}
