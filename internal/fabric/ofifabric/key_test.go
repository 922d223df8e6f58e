//go:build linux && cgo

package ofifabric_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/pool"
)

// TestKeysAreRandom: the keys of memory that peers may write to cannot be guessed. If the
// provider lets us choose them, they have 64 random bits.
func TestKeysAreRandom(t *testing.T) {
	for _, provider := range providers {
		t.Run(provider, func(t *testing.T) {
			const regions = 32
			ep := open(t, provider)
			var ones, zeroes uint64
			for range regions {
				r, err := ep.Register(mapped(t, 4096), pool.AccessRemoteWrite)
				require.NoError(t, err)
				ones |= r.Key()
				zeroes |= ^r.Key()
				require.NoError(t, r.Close())
			}
			// By chance, a given bit is the same in all 32 keys once in two thousand million runs.
			assert.Equal(t, ^uint64(0), ones, "bits that are never set")
			assert.Equal(t, ^uint64(0), zeroes, "bits that are always set")
		})
	}
}
