package report

import (
	"slices"

	"github.com/seed202c38ff/fabricnet/bench/internal/workload"
)

// paragraphs explain a table. Each is for tables that have such a row.
var paragraphs = []struct {
	about func(Result) bool
	text  string
}{
	{func(Result) bool { return true }, `
Medians over the rounds.`},
	{onTransport(workload.TransportTCP), `
Three columns compare with TCP on the same work: time is the p50 (below 1x is
faster than TCP; for bw and zc that of one write), rate is operations and bytes
a second (above 1x is faster), cpu is CPU time per operation in both processes
(below 1x is cheaper). Rounds is the range of the rate's ratio over the rounds,
to TCP in the same round, for streams and where there is more than one operation
at a time, and else that of the time's; to best is its median to TCP's best
round.`},
	{ofMode(workload.ModeConn), `
A conn is a dial, the echo of a byte and a close: tcp shakes hands for each,
rdma-noreuse meets the listener over TCP for each, and rdma does so once and
opens all further conns over the fabric.`},
	{ofMode(workload.ModeFirst), `
A first conn is one to a process that was not met before: one client meets nine
servers in a round, each of which has listened for 0.1 s; its very first conn
opens what later ones find.`},
	{ofMode(workload.ModeZC), `
zc is a stream whose every 4K are stamped and verified; rdma moves it by the
zero-copy calls.`},
	{ofMode(workload.ModeHTTP), `
http is GETs over HTTP/1.1. Those of 1024M have a file as their body: over TCP
the kernel sends it by itself (sendfile).`},
	{func(r Result) bool { return r.Load }, `
On a busy host another program computes on every CPU.`},
	{func(r Result) bool { return r.Fairness > 0 }, `
Fairness is Jain's index over the conns' bytes.`},
	{func(r Result) bool { return r.Mode == workload.ModeIdle && r.Idle == 0 }, `
Idle conns have each echoed a byte; the figures are of the process that uses
more.`},
	{onTransport(workload.TransportRsockets), `
rsockets is rstream, whose figures are means and whose two sides take turns.`},
	{func(r Result) bool { return r.Peers() > 0 }, `
Peers are client processes with a conn each, all to one server: "among 10 idle
peers" is the work of one while ten wait in Read, to alone the median of the
rounds' ratios to one with a server of its own, measured right before or after,
"by 11 peers" that of all at once. What a peer takes of the server's memory is
how far that has grown since the first one, by MemoryStats (used and mapped) and
by what is resident; what it takes of its own is what it has more than before it
dialed. CPU is the server's there.`},
}

func ofMode(mode string) func(Result) bool {
	return func(r Result) bool { return r.Mode == mode }
}

func onTransport(transport string) func(Result) bool {
	return func(r Result) bool { return r.Transport == transport }
}

// legend explains what is in a table of these results, in paragraphs.
func legend(results []Result) (texts []string) {
	for _, p := range paragraphs {
		if slices.ContainsFunc(results, p.about) {
			texts = append(texts, p.text)
		}
	}
	return texts
}
