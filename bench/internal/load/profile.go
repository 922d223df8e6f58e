package load

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime/pprof"

	"github.com/seed202c38ff/fabricnet/bench/internal/workload"
)

// A profiler takes a CPU profile of what a process does for its job once it is warm.
type profiler struct {
	job  Job
	role string
	file *os.File
}

// start begins the profile, if one was asked for and it has not begun yet.
func (p *profiler) start() (err error) {
	if p.job.Profile == "" || p.file != nil {
		return nil
	}
	if p.file, err = os.Create(filepath.Join(p.job.Profile, p.name())); err != nil {
		return fmt.Errorf("-profile: %w", err)
	}
	return pprof.StartCPUProfile(p.file)
}

func (p *profiler) stop() error {
	if p.file == nil {
		return nil
	}
	pprof.StopCPUProfile()
	return p.file.Close()
}

// name returns the row's name, such as rpc-64-x64-rdma-shm.r1.server.pprof.
func (p *profiler) name() string {
	return fmt.Sprintf("%s.r%d.%s.pprof", workload.Slug(p.job.WorkText()+" "+p.job.Label()), p.job.Round, p.role)
}
