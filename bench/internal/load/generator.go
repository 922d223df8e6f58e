package load

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"

	"github.com/seed202c38ff/fabricnet/bench/internal/workload"
)

// A generator measures jobs by processes of its program, which play the roles of child.
type generator struct {
	program string
	server  string // the address of another machine's server, which starts the jobs' servers; "" for none
	fanIns  fanIns
}

// New returns a generator of this program. memory says that some jobs measure the memory
// that peers take.
func New(server string, memory bool) (*generator, error) {
	program, err := os.Executable()
	return &generator{program: program, server: server, fanIns: fanIns{program: program, memory: memory}}, err
}

// Measure does j once.
func (g *generator) Measure(ctx context.Context, j Job) (workload.Sample, error) {
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
func (g *generator) Close() { g.fanIns.close() }

// Child runs this process in a role, if that is what its arguments ask for, and returns its exit
// status.
func Child(args []string) (status int, isChild bool) {
	if len(args) != 3 || !slices.Contains([]string{roleServer, roleClient, roleLoad}, args[1]) {
		return 0, false
	}
	err := runChild(args[1], args[2], os.Stdin, os.Stdout)
	if err == nil {
		return 0, true
	}
	if json.NewEncoder(os.Stdout).Encode(reply{Error: err.Error()}) != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return 1, true
}
