// Package load measures cases, each by processes of its own, which are copies of the program:
//
//	Generator.Measure(Job) -> workload.Sample
//	    measure.go        starts a server and a client (process.go), has the client work for the
//	                      job's time, and asks both for what they have used
//	    fanin.go          does so with many client processes, the peers, of one server
//	    remote.go         does so with a server that a Server on another machine has started
//	    rsockets.go       runs another program, rstream, in place of both
//
//	Child: what such a process does, as lines of its standard input ask
//	    transport.go      listens and dials
//	    worker.go         does a job's work on the conns; oneway.go and stamp.go have streams,
//	                      rpc.go gRPC, body.go HTTP, idle.go and peer.go conns that wait
//	    meter.go          reads what the process has used
package load

import (
	"context"
	"os"

	"github.com/seed202c38ff/fabricnet/bench/internal/workload"
)

// A Generator measures jobs by processes of its program, which play the roles of Child.
type Generator struct {
	program string
	server  string // the address of another machine's server, which starts the jobs' servers; "" for none
	fanIns  fanIns
}

// New returns a Generator of this program. memory says that some jobs measure the memory
// that peers take.
func New(server string, memory bool) (*Generator, error) {
	program, err := os.Executable()
	return &Generator{program: program, server: server, fanIns: fanIns{program: program, memory: memory}}, err
}

// Measure does j once.
func (g *Generator) Measure(ctx context.Context, j Job) (workload.Sample, error) {
	if g.server != "" {
		return measureFrom(ctx, g.program, j, func(ctx context.Context, j Job) (*process, error) {
			return startRemote(ctx, g.server, j)
		})
	}
	return besideLoad(ctx, g.program, j, func() (workload.Sample, error) {
		if j.Peers() > 0 {
			return g.fanIns.measure(ctx, j)
		}
		return measure(ctx, g.program, j)
	})
}

// Close ends the processes that are left.
func (g *Generator) Close() { g.fanIns.close() }
