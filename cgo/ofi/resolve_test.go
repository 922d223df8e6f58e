//go:build linux && cgo

package ofi_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/seed202c38ff/fabricnet/internal/testenv"
)

// An endpoint can resolve its own address; without a device, or without IP addresses,
// nothing is looked up. Invalid names are refused by every provider.
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
