package workswith_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// TestNATS: messages to subscribers, requests with answers, and both again after the server was
// started anew, with a server behind the proxy.
func TestNATS(t *testing.T) {
	port, err := strconv.Atoi(freePort(t))
	require.NoError(t, err)
	s := natsServer(t, port)
	reconnected := make(chan struct{}, 1)
	conn, err := nats.Connect("nats://"+proxy(t, "tcp://"+s.Addr().String()),
		nats.SetCustomDialer(&rdmanet.Dialer{Timeout: 5 * time.Second}),
		nats.ReconnectWait(20*time.Millisecond), nats.MaxReconnects(-1),
		nats.ReconnectHandler(func(*nats.Conn) { reconnected <- struct{}{} }))
	require.NoError(t, err)
	t.Cleanup(conn.Close)

	news, err := conn.SubscribeSync("news")
	require.NoError(t, err)
	_, err = conn.Subscribe("double", func(m *nats.Msg) { _ = m.Respond(append(m.Data, m.Data...)) })
	require.NoError(t, err)
	exchange(t, conn, news)

	s.Shutdown()
	s.WaitForShutdown()
	natsServer(t, port)
	select {
	case <-reconnected:
	case <-time.After(patience):
		require.FailNow(t, "the client does not reconnect")
	}
	exchange(t, conn, news)
}

// exchange publishes messages, the last of which is large, and makes a request.
func exchange(t *testing.T, conn *nats.Conn, news *nats.Subscription) {
	t.Helper()
	large := make([]byte, 512<<10)
	for range 1000 {
		require.NoError(t, conn.Publish("news", []byte("hello")))
	}
	require.NoError(t, conn.Publish("news", large))
	for range 1000 {
		m, err := news.NextMsg(patience)
		require.NoError(t, err)
		assert.Equal(t, "hello", string(m.Data))
	}
	m, err := news.NextMsg(patience)
	require.NoError(t, err)
	assert.Len(t, m.Data, len(large))

	answer, err := conn.Request("double", []byte("ab"), patience)
	require.NoError(t, err)
	assert.Equal(t, "abab", string(answer.Data))
}

// natsServer starts a NATS server in this process, which ends with the test at the latest.
func natsServer(t *testing.T, port int) *server.Server {
	t.Helper()
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: port, NoSigs: true, NoLog: true})
	require.NoError(t, err)
	go s.Start()
	t.Cleanup(s.Shutdown)
	require.True(t, s.ReadyForConnections(patience))
	return s
}
