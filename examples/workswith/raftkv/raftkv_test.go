package main_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/examples/workswith/raftkv/cluster"
)

const patience = 30 * time.Second

// TestLeaderKilled: what was stored survives the leader; the others elect another one and take
// more, and the one that was killed catches up when it is back.
func TestLeaderKilled(t *testing.T) {
	program, err := cluster.Build(t.TempDir())
	require.NoError(t, err)
	for _, network := range []string{"rdma", "tcp"} {
		t.Run(network, func(t *testing.T) {
			c, err := cluster.Start(program, network, t.TempDir(), "-heartbeat", "300ms")
			require.NoError(t, err)
			t.Cleanup(func() { assert.NoError(t, c.Stop()) })
			ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
			defer cancel()

			first, err := c.Leader(ctx)
			require.NoError(t, err)
			put(ctx, t, c, "before", (first+1)%3) // which sends the client to the leader

			require.NoError(t, c.Kill(first))
			second, err := c.Leader(ctx)
			require.NoError(t, err)
			require.NotEqual(t, first, second)
			put(ctx, t, c, "after", second)

			require.NoError(t, c.Restart(first))
			for _, key := range []string{"before", "after"} {
				for i := range keys {
					require.EventuallyWithT(t, func(t *assert.CollectT) {
						value, err := c.Get(ctx, first, fmt.Sprint(key, i))
						require.NoError(t, err)
						assert.Equal(t, fmt.Sprint("value of ", key, i), string(value))
					}, patience, 20*time.Millisecond)
				}
			}
		})
	}
}

const keys = 100

// put stores keys by way of a node. The first try may come before the node knows the leader.
func put(ctx context.Context, t *testing.T, c *cluster.Cluster, key string, node int) {
	t.Helper()
	for i := range keys {
		require.Eventually(t, func() bool {
			err := c.Put(ctx, node, fmt.Sprint(key, i), fmt.Append(nil, "value of ", key, i))
			if err != nil {
				t.Log(err)
			}
			return err == nil
		}, patience, 20*time.Millisecond)
	}
}
