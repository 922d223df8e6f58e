//go:build !linux

package doctor

import (
	"context"
	"errors"
	"os"
	"runtime"

	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// Local returns this machine, about which only Linux would say more.
func Local(context.Context) (*Machine, error) {
	none := func(string) error { return errors.ErrUnsupported }
	return &Machine{
		Root: os.DirFS("/"), CPUs: runtime.NumCPU(), MaxProcs: runtime.GOMAXPROCS(0),
		Go: runtime.Version(), Environ: os.Environ(), ProvidersErr: rdmanet.ErrUnsupported,
		Space: func(string) (uint64, error) { return 0, errors.ErrUnsupported }, Usable: none, Safe: none,
	}, nil
}
