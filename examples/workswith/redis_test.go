//go:build works

package workswith_test

import (
	"crypto/sha256"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// TestRedis: commands, a pipeline, a transaction, a conn that is lost and messages to subscribers,
// with a real server behind the proxy.
func TestRedis(t *testing.T) {
	client := redis.NewClient(&redis.Options{
		Addr:   proxy(t, redisServer(t)),
		Dialer: (&rdmanet.Dialer{Timeout: 5 * time.Second}).DialContext,
	})
	t.Cleanup(func() { assert.NoError(t, client.Close()) })
	ctx := t.Context()

	large := strings.Repeat("value", 1<<20)
	require.NoError(t, client.Set(ctx, "large", large, 0).Err())
	got, err := client.Get(ctx, "large").Bytes()
	require.NoError(t, err)
	assert.Equal(t, sha256.Sum256([]byte(large)), sha256.Sum256(got))

	const commands = 10_000
	pipe := client.Pipeline()
	for i := range commands {
		pipe.Set(ctx, fmt.Sprint("key", i), i, 0)
	}
	last := pipe.Get(ctx, fmt.Sprint("key", commands-1))
	_, err = pipe.Exec(ctx)
	require.NoError(t, err)
	assert.Equal(t, fmt.Sprint(commands-1), last.Val())

	_, err = client.TxPipelined(ctx, func(tx redis.Pipeliner) error {
		tx.Incr(ctx, "counter")
		tx.IncrBy(ctx, "counter", 41)
		return nil
	})
	require.NoError(t, err)
	counter, err := client.Get(ctx, "counter").Int()
	require.NoError(t, err)
	assert.Equal(t, 42, counter)

	// A conn that has ended while it was idle is noticed by the next command, which is tried again.
	require.NoError(t, client.Do(ctx, "client", "kill", "type", "normal", "skipme", "no").Err())
	require.NoError(t, client.Get(ctx, "counter").Err())

	subscription := client.Subscribe(ctx, "news")
	_, err = subscription.Receive(ctx) // the server has it
	require.NoError(t, err)
	for i := range 100 {
		require.NoError(t, client.Publish(ctx, "news", i).Err())
	}
	for i := range 100 {
		message, err := subscription.ReceiveMessage(ctx)
		require.NoError(t, err)
		assert.Equal(t, fmt.Sprint(i), message.Payload)
	}
	require.NoError(t, subscription.Close())
}

// redisServer starts a Redis that keeps nothing and listens at a Unix socket only, and returns
// where the proxy reaches it.
func redisServer(t *testing.T) string {
	t.Helper()
	dir := socketDir(t)
	socket := filepath.Join(dir, "redis")
	cmd := exec.Command("redis-server", "--port", "0", "--unixsocket", socket, "--dir", dir, "--save", "", "--daemonize", "no")
	startServer(t, cmd, socket)
	return "unix://" + socket
}
