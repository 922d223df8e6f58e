package engine

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
)

// TestOpensEndWithTheEndpoint: many Opens whose context ends while the endpoint is being closed all return.
func TestOpensEndWithTheEndpoint(t *testing.T) {
	for range 40 {
		l := newLink(t, personalities()["tcp"], Config{Spin: -1})
		l.net.Kill(l.eb.fab, simfabric.DeathSilent) // nothing is answered
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		for range 200 {
			wg.Go(func() { _, _ = l.a.Open(ctx, 7) })
		}
		time.Sleep(3 * time.Millisecond)
		cancel()
		require.NoError(t, l.ea.Close())
		wg.Wait()
		require.NoError(t, l.eb.Close())
	}
}
