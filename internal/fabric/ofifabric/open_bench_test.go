//go:build linux && cgo

package ofifabric_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric/ofifabric"
)

// BenchmarkOpen opens and closes an endpoint.
func BenchmarkOpen(b *testing.B) {
	for _, provider := range providers {
		b.Run(provider, func(b *testing.B) {
			for b.Loop() {
				ep, err := ofifabric.New().Open(provider, loopback)
				require.NoError(b, err)
				b.StopTimer()
				require.NoError(b, ep.Close())
				b.StartTimer()
			}
		})
	}
}
