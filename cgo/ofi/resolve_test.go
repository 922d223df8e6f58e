//go:build linux && cgo

package ofi_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/seed202c38ff/fabricnet/internal/testenv"
)

// An endpoint's own address can be reached; without a device, or without IP addresses,
// nobody is asked. Names that are none are refused everywhere.
func TestResolve(t *testing.T) {
	for _, provider := range testenv.Providers() {
		t.Run(provider, func(t *testing.T) {
			ep := open(t, provider)
			assert.NoError(t, ep.Resolve(ep.Name(), time.Second))
			for _, name := range [][]byte{nil, {1}, make([]byte, len(ep.Name())), ep.Name()[:len(ep.Name())/4]} {
				assert.ErrorContains(t, ep.Resolve(name, time.Second), "not the name of", "%x", name)
			}
		})
	}
}
