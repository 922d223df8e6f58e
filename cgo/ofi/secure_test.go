//go:build linux && cgo

package ofi

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestDistrusts: internal/systemtest has the test that a program with more rights than its user
// removes these variables.
func TestDistrusts(t *testing.T) {
	for entry, want := range map[string]bool{
		"FI_PROVIDER_PATH=/tmp":       true,
		"FI_=":                        true,
		"RDMANET_LIBFABRIC=/tmp/a.so": true,
		"PSM3_LOG_FILENAME=/tmp/log":  true,
		"IBV_DRIVERS=/tmp/a":          true,
		"IBV_FORK_SAFE=1":             false,
		"IBV_DRIVERS_=/tmp/a":         false,
		"CUDA_VISIBLE_DEVICES=0":      false,
		"XFI_PROVIDER_PATH=/tmp":      false,
		"A=FI_PROVIDER_PATH=/tmp":     false,
		"PATH=/usr/bin":               false,
	} {
		assert.Equal(t, want, distrusts(entry), entry)
	}
}
