package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// startSilent starts fabricnet proxy with the given standard error, and waits until it accepts
// a first client on a Unix socket.
func startSilent(t *testing.T, stderr *os.File, at endpoint, flags ...string) (p *child, first conn) {
	t.Helper()
	p, kill := program(t, append([]string{"-listen", at.String()}, flags...)...)
	p.Stderr = stderr
	require.NoError(t, p.Start())
	waited := make(chan struct{})
	go func() {
		defer close(waited)
		p.exited <- p.Wait()
	}()
	t.Cleanup(func() {
		kill()
		<-waited
	})
	require.Eventually(t, func() bool {
		c, err := at.dial(t.Context(), new(rdmanet.Dialer))
		first = c
		return err == nil
	}, patience, time.Millisecond, "it listens")
	return p, limited(t, first)
}

// manyPass connects clients one after the other, more than the proxy takes at a time.
func manyPass(t *testing.T, at endpoint, accept func() conn) {
	t.Helper()
	for range 100 {
		client := connect(t, at)
		server := accept()
		pass(t, client, server)
		require.NoError(t, errors.Join(client.Close(), server.Close()))
	}
}

// A standard error that nobody reads blocks neither conns nor the shutdown.
func TestStalledLog(t *testing.T) {
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	defer w.Close()
	require.NoError(t, w.SetWriteDeadline(time.Now().Add(100*time.Millisecond)))
	_, err = io.Copy(w, endless{})
	require.ErrorIs(t, err, os.ErrDeadlineExceeded, "it is full")

	backend, to := listen(t, "tcp")
	at := anywhere(t, "unix")
	p, client := startSilent(t, w, at, "-to", to.String(), "-max-conns", "20", "-grace", "100ms")
	server := accept(t, backend)
	manyPass(t, at, func() conn { return accept(t, backend) })
	pass(t, client, server)
	require.NoError(t, p.Process.Signal(syscall.SIGTERM))
	assert.NoError(t, p.ended(t))
	_, err = server.Read(make([]byte, 1))
	assert.ErrorIs(t, err, syscall.ECONNRESET)
}

// A standard error whose reader is gone blocks neither conns nor the shutdown.
func TestBrokenLog(t *testing.T) {
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer w.Close()
	backend, to := listen(t, "tcp")
	at := anywhere(t, "unix")
	p, client := startSilent(t, w, at, "-to", to.String(), "-max-conns", "20", "-grace", "1m")
	server := accept(t, backend)
	require.NoError(t, r.Close())
	manyPass(t, at, func() conn { return accept(t, backend) })
	pass(t, client, server)
	require.NoError(t, errors.Join(client.Close(), server.Close()))
	require.NoError(t, p.Process.Signal(syscall.SIGTERM))
	assert.NoError(t, p.ended(t))
}

// Logging does not wait for the reader. Lines that do not fit are counted, and the log says
// how many were lost once there is room again.
func TestLines(t *testing.T) {
	const total = 3 * maxLines
	r, w := io.Pipe()
	l := newLines(w)
	for i := range total {
		n, err := fmt.Fprintln(l, "line", i)
		require.NoError(t, err)
		require.Equal(t, len(fmt.Sprintln("line", i)), n)
	}
	lost := regexp.MustCompile(`level=WARN msg="log lines were lost.*" lines=(\d+)`)
	got, said, read := 0, 0, make(chan struct{})
	go func() {
		defer close(read)
		for lines := bufio.NewScanner(r); lines.Scan(); {
			if m := lost.FindStringSubmatch(lines.Text()); m != nil {
				n, err := strconv.Atoi(m[1])
				assert.NoError(t, err)
				said += n
				continue
			}
			if got < maxLines { // the queue has room for one more once the first is being written
				assert.Equal(t, fmt.Sprint("line ", got), lines.Text())
			}
			got++
		}
	}()
	l.close()
	require.NoError(t, w.Close())
	<-read
	assert.GreaterOrEqual(t, got, maxLines)
	assert.Equal(t, total, got+said)
	assert.EqualValues(t, said, l.lost.Load())
}

// On virtual time: close waits for the reader, but no longer than linesLinger.
func TestLinesEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe()
		l := newLines(w)
		fmt.Fprintln(l, "a line")
		began := time.Now()
		l.close()
		assert.Equal(t, linesLinger, time.Since(began))
		require.NoError(t, r.Close())

		var text strings.Builder
		l = newLines(&text)
		fmt.Fprintln(l, "a line")
		began = time.Now()
		l.close()
		assert.Zero(t, time.Since(began))
		assert.Equal(t, "a line\n", text.String())
	})
}

// Lines that cannot be written count as lost, too.
func TestLinesFail(t *testing.T) {
	r, w := io.Pipe()
	require.NoError(t, r.Close())
	l := newLines(w)
	for range 3 {
		fmt.Fprintln(l, "a line")
	}
	l.close()
	assert.EqualValues(t, 3, l.lost.Load())
}

// stuck is a writer that holds lines containing text back until open is closed.
type stuck struct {
	text string
	open chan struct{}
}

func (s stuck) Write(line []byte) (int, error) {
	if strings.Contains(string(line), s.text) {
		<-s.open
	}
	return len(line), nil
}

// Conns are cut off before the log says so.
func TestCutBeforeLog(t *testing.T) {
	backend, to := listen(t, "tcp")
	log := stuck{"cutting off", make(chan struct{})}
	at, stop := start(t, "tcp", &proxy{to: to, log: slog.New(slog.NewTextHandler(log, nil))})
	client, server := connect(t, at), accept(t, backend)
	pass(t, client, server)
	stopped := make(chan struct{})
	go func() { defer close(stopped); stop() }()
	_, err := server.Read(make([]byte, 1))
	assert.ErrorIs(t, err, syscall.ECONNRESET)
	close(log.open)
	<-stopped
}
