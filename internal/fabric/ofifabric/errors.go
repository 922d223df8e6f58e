//go:build linux && cgo

package ofifabric

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
)

// explain says which provider failed, where, and what can be done about it.
func explain(provider string, src netip.Addr, err error) error {
	if provider == shm {
		if hint := shmSpace(); hint != "" {
			return fmt.Errorf("provider %s: %s: %w", provider, hint, err)
		}
	}
	if errors.Is(err, fabric.ErrNoProvider) && !anywhere(src) {
		return fmt.Errorf("provider %s for %s: %w (fi_info -p '%s' lists where it is)", provider, src, err, provider)
	}
	return fmt.Errorf("provider %s: %w", provider, err)
}
