package main

import (
	"bufio"
	"encoding/json"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAServerOutlivesItsClients(t *testing.T) {
	address := serveProcess(t)
	var dialer net.Dialer
	for name, send := range map[string]string{
		"nothing":          "",
		"no request":       "GET / HTTP/1.1\r\n",
		"too long":         strings.Repeat("x", bufio.MaxScanTokenSize+1),
		"another version":  `{"Version":99}` + "\n",
		"a job it refuses": `{"Version":1,"Job":{"mode":"lat","transport":"tcp","size":99999999999}}` + "\n",
	} {
		c, err := dialer.DialContext(t.Context(), "tcp", address)
		require.NoError(t, err)
		_, err = c.Write([]byte(send))
		require.NoError(t, err)
		if err := (halfConn{c}).Close(); err != nil { // the server has refused already and reset the connection
			require.ErrorIs(t, err, syscall.ENOTCONN, name)
		}
		require.NoError(t, c.SetDeadline(time.Now().Add(10*time.Second)))
		var r reply
		if err := json.NewDecoder(c).Decode(&r); !assert.NotErrorIs(t, err, os.ErrDeadlineExceeded, name) || err == nil {
			assert.NotEmpty(t, r.Error, name)
		}
		require.NoError(t, c.Close())
	}

	// This client leaves in the middle of a measurement.
	j := job{cell: lat64.over(overTCP), Time: time.Minute}
	c, err := dialServer(t.Context(), address, request{Job: &j})
	require.NoError(t, err)
	var ready reply
	require.NoError(t, json.NewDecoder(c).Decode(&ready))
	assert.NotEmpty(t, ready.Address)
	require.NoError(t, c.Close())

	o, err := askOffer(t.Context(), address)
	require.NoError(t, err)
	assert.Equal(t, "a machine", o.Machine)
	assert.Equal(t, "127.0.0.1", o.Client)
	assert.True(t, o.SameHost)
}

func TestAClientSaysWhatTheServerHas(t *testing.T) {
	address := serveProcess(t)
	p, err := startRemote(t.Context(), address, job{cell: cell{Mode: modeLat, Transport: "pigeon", Size: 1, Conns: 1, Inflight: 1}, Time: 1})
	require.NoError(t, err)
	_, err = p.receive()
	assert.EqualError(t, err, "server at "+address+": pigeon does not reach other machines")
	assert.NoError(t, p.stop())

	_, err = askOffer(t.Context(), "127.0.0.1:1")
	assert.ErrorIs(t, err, syscall.ECONNREFUSED)
	assert.ErrorContains(t, err, "bench (-s)")

	l, err := net.Listen("tcp", "127.0.0.1:0") // not a bench server
	require.NoError(t, err)
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	_, err = askOffer(t.Context(), l.Addr().String())
	assert.ErrorContains(t, err, "does not answer as bench -s does")
}

func TestJobsOfOtherMachinesAreBounded(t *testing.T) {
	good := job{cell: lat64.over(overTCP), WarmUp: time.Second, Time: time.Second}
	require.NoError(t, good.check())
	for name, spoil := range map[string]func(*job){
		"mode":         func(j *job) { j.Mode = "x" },
		"transport":    func(j *job) { j.Transport = transportUnix },
		"rsockets":     func(j *job) { j.Transport = transportRsockets },
		"no size":      func(j *job) { j.Size = 0 },
		"size":         func(j *job) { j.Size = maxSize + 1 },
		"stride":       func(j *job) { j.Mode, j.Size = modeZC, 5000 },
		"conns":        func(j *job) { j.Conns = maxConns + 1 },
		"calls":        func(j *job) { j.Inflight = -1 },
		"time":         func(j *job) { j.Time = maxTime + 1 },
		"no time":      func(j *job) { j.Time = 0 },
		"warming up":   func(j *job) { j.WarmUp = maxTime + 1 },
		"back in time": func(j *job) { j.WarmUp = -1 },
	} {
		bad := good
		spoil(&bad)
		assert.Error(t, bad.check(), name)
	}
	assert.Error(t, job{cell: cell{Mode: modePeers, Transport: transportTCP, Size: 1, Conns: 1, Inflight: 1}, Time: 1}.check(), "their processes are all on one machine")
}

func TestOnlyWhatBothMachinesHaveIsMeasured(t *testing.T) {
	have := []string{"shm", "verbs;ofi_rxm", "net"}
	both, missing := offer{Providers: []string{"shm", "net", "efa"}}.common(have)
	assert.Equal(t, []string{"net"}, both)
	assert.Equal(t, []string{"shm", "verbs;ofi_rxm"}, missing)
	both, _ = offer{Providers: []string{"shm"}, SameHost: true}.common(have)
	assert.Equal(t, []string{"shm"}, both)
}
