package load

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/bench/internal/workload"
)

// watched is a carrier with one conn that knows whether a goroutine is in Read.
type watched struct {
	socket
	net.Conn
	reads atomic.Int64
}

func (w *watched) dial(context.Context, string) (net.Conn, error) { return w, nil }
func (w *watched) Close() error                                   { return w.Conn.Close() }

func (w *watched) Read(b []byte) (int, error) {
	w.reads.Add(1)
	defer w.reads.Add(-1)
	return w.Conn.Read(b)
}

func (w *watched) isRead() bool { return w.reads.Load() == 1 }

// play runs a peer on a conn whose other end is handed to serve. tell sends it a line and
// returns its reply; ended yields the result of playPeer.
func play(t *testing.T, serve func(net.Conn)) (w *watched, tell func(string) reply, ended <-chan error) {
	client, server := net.Pipe()
	go serve(server)
	w = &watched{Conn: client}
	in, told := io.Pipe()
	replies, out := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := playPeer(t.Context(), w, bufio.NewScanner(in), json.NewEncoder(out))
		out.Close()
		done <- err
	}()
	t.Cleanup(func() { told.Close(); server.Close() })
	from := json.NewDecoder(replies)
	return w, func(line string) (r reply) {
		_, err := io.WriteString(told, line+"\n")
		require.NoError(t, err)
		if err := from.Decode(&r); err != nil {
			require.ErrorIs(t, err, io.EOF)
		}
		return r
	}, done
}

func turnText(t *testing.T, mode string, begin time.Time) string {
	line, err := json.Marshal(turn{Mode: mode, Size: 64, Begin: begin, Time: 5 * time.Millisecond})
	require.NoError(t, err)
	return string(line)
}

func TestAPeerIsInReadUnlessItHasItsTurn(t *testing.T) {
	w, tell, _ := play(t, func(c net.Conn) { _ = serveTurns(c) })
	tell("the address")
	idle := func() { t.Helper(); require.Eventually(t, w.isRead, 5*time.Second, time.Millisecond) }
	idle()
	for _, mode := range []string{workload.ModeLat, workload.ModeBW, workload.ModeLat} {
		begin := time.Now().Add(20 * time.Millisecond)
		r := tell(turnText(t, mode, begin))
		assert.Positive(t, r.Sample.Ops)
		assert.False(t, r.Began.Before(begin), "all begin together")
		var counted uint64
		for _, n := range r.Times {
			counted += n
		}
		assert.Equal(t, r.Sample.Ops, counted)
		idle()
		assert.Positive(t, tell(askUsage).Usage.CPU)
		assert.True(t, w.isRead(), "a question does not wake it")
	}
}

func TestAnIdleConnThatBreaksFailsTheTurn(t *testing.T) {
	for what, spoil := range map[string]func(net.Conn){
		"closed":         func(c net.Conn) { c.Close() },
		"nobody had ask": func(c net.Conn) { _, _ = c.Write([]byte{0}) },
	} {
		spoiled := make(chan struct{})
		_, tell, ended := play(t, func(c net.Conn) {
			defer close(spoiled)
			var head [turnHead]byte
			_, _ = io.ReadFull(c, head[:])
			_ = serveTurn(c, kindLat, 1)
			spoil(c)
		})
		tell("the address")
		<-spoiled // Write on a net.Pipe returns once the byte has been read
		assert.Zero(t, tell(turnText(t, workload.ModeLat, time.Now())).Sample)
		assert.ErrorContains(t, <-ended, what)
	}
}

func TestLinesThatAreNoTurnEndThePeer(t *testing.T) {
	_, tell, ended := play(t, func(c net.Conn) { _ = serveTurns(c) })
	tell("the address")
	tell("measure")
	assert.ErrorContains(t, <-ended, "the turn is not readable")
}
