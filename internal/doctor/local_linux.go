package doctor

import (
	"context"
	"net/netip"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/seed202c38ff/fabricnet/internal/shmdir"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// Local returns this machine, and this process. It opens an endpoint of each provider, which may
// take seconds. It fails only if ctx ends, or what it has opened cannot be closed.
func Local(ctx context.Context) (*Machine, error) {
	m := &Machine{
		Root: os.DirFS("/"), CPUs: runtime.NumCPU(), MaxProcs: runtime.GOMAXPROCS(0),
		Go: runtime.Version(), Environ: os.Environ(), Space: space, Usable: usable, Safe: shmdir.CheckDir,
	}
	m.Compiled, m.Library, m.File = versions()
	t := new(rdmanet.Transport)
	m.Providers, m.ProvidersErr = t.Providers(ctx, netip.Addr{}, nil)
	if err := t.Close(); err != nil {
		return nil, err
	}
	return m, context.Cause(ctx)
}

func space(dir string) (uint64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	return st.Bavail * uint64(st.Bsize), nil
}

func usable(path string) error {
	if err := unix.Faccessat(unix.AT_FDCWD, path, unix.R_OK|unix.W_OK, unix.AT_EACCESS); err != nil {
		return &os.PathError{Op: "access", Path: path, Err: err}
	}
	return nil
}
