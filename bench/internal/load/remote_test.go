package load

import (
	"bufio"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/bench/internal/benchtest"
	"github.com/seed202c38ff/fabricnet/bench/internal/workload"
)

// serveProcess runs a Server in a process of its own until the test ends, and
// returns the address that it listens on.
func serveProcess(t *testing.T) (address string) {
	t.Helper()
	cmd := exec.Command(benchtest.Program(t))
	cmd.Env = append(os.Environ(), asServer+"=1")
	return benchtest.Serve(t, cmd)
}

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
	j := Job{Case: workload.Lat64.Over(workload.TCP), Time: time.Minute}
	c, err := dialServer(t.Context(), address, request{Job: &j})
	require.NoError(t, err)
	var ready reply
	require.NoError(t, json.NewDecoder(c).Decode(&ready))
	assert.NotEmpty(t, ready.Address)
	require.NoError(t, c.Close())

	o, err := AskOffer(t.Context(), address)
	require.NoError(t, err)
	assert.Equal(t, "a machine", o.Machine)
	assert.Equal(t, "127.0.0.1", o.Client)
	assert.True(t, o.SameHost)
}

func TestAClientSaysWhatTheServerHas(t *testing.T) {
	address := serveProcess(t)
	p, err := startRemote(t.Context(), address, Job{Case: workload.Case{Mode: workload.ModeLat, Transport: "pigeon", Size: 1, Conns: 1, Inflight: 1}, Time: 1})
	require.NoError(t, err)
	_, err = p.receive()
	assert.EqualError(t, err, "server at "+address+": pigeon does not reach other machines")
	assert.NoError(t, p.stop())

	_, err = AskOffer(t.Context(), "127.0.0.1:1")
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
	_, err = AskOffer(t.Context(), l.Addr().String())
	assert.ErrorContains(t, err, "does not answer as bench -s does")
}

func TestJobsOfOtherMachinesAreBounded(t *testing.T) {
	good := Job{Case: workload.Lat64.Over(workload.TCP), WarmUp: time.Second, Time: time.Second}
	require.NoError(t, good.check())
	for name, spoil := range map[string]func(*Job){
		"mode":         func(j *Job) { j.Mode = "x" },
		"transport":    func(j *Job) { j.Transport = workload.TransportUnix },
		"rsockets":     func(j *Job) { j.Transport = workload.TransportRsockets },
		"no size":      func(j *Job) { j.Size = 0 },
		"size":         func(j *Job) { j.Size = MaxSize + 1 },
		"stride":       func(j *Job) { j.Mode, j.Size = workload.ModeZC, 5000 },
		"conns":        func(j *Job) { j.Conns = MaxConns + 1 },
		"calls":        func(j *Job) { j.Inflight = -1 },
		"time":         func(j *Job) { j.Time = maxTime + 1 },
		"no time":      func(j *Job) { j.Time = 0 },
		"warming up":   func(j *Job) { j.WarmUp = maxTime + 1 },
		"back in time": func(j *Job) { j.WarmUp = -1 },
	} {
		bad := good
		spoil(&bad)
		assert.Error(t, bad.check(), name)
	}
	assert.Error(t, Job{Case: workload.Case{Mode: workload.ModePeers, Transport: workload.TransportTCP, Size: 1, Conns: 1, Inflight: 1}, Time: 1}.check(), "their processes are all on one machine")
}

func TestOnlyWhatBothMachinesHaveIsMeasured(t *testing.T) {
	have := []string{"shm", "verbs;ofi_rxm", "net"}
	both, missing := Offer{Providers: []string{"shm", "net", "efa"}}.Common(have)
	assert.Equal(t, []string{"net"}, both)
	assert.Equal(t, []string{"shm", "verbs;ofi_rxm"}, missing)
	both, _ = Offer{Providers: []string{"shm"}, SameHost: true}.Common(have)
	assert.Equal(t, []string{"shm"}, both)
}
