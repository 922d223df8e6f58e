package rdmanet_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

func init() { rdmatest.Roles["relay"] = relay }

// relay listens, and joins every conn that it accepts to a new one to addr. It ends when
// its standard input does.
func relay(provider, addr string) error {
	lc := rdmanet.ListenConfig{Providers: []string{provider}}
	l, err := lc.Listen(context.Background(), "rdma", testenv.Address())
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	go rdmatest.Serve(l, func(in net.Conn) { relayConn(in.(*rdmanet.Conn), provider, addr) })
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

func relayConn(in *rdmanet.Conn, provider, addr string) {
	defer in.Close()
	d := rdmanet.Dialer{Providers: []string{provider}, Timeout: rdmatest.Patience}
	nc, err := d.Dial("rdma", addr)
	if err != nil {
		return
	}
	out := nc.(*rdmanet.Conn)
	defer out.Close()
	var wg sync.WaitGroup
	for _, c := range [][2]*rdmanet.Conn{{in, out}, {out, in}} {
		wg.Go(func() {
			if _, err := c[0].WriteTo(c[1]); err != nil {
				// One side is gone: the other must not go on.
				_ = c[0].CloseRead()
			}
			_ = c[1].CloseWrite()
		})
	}
	wg.Wait()
}

// acrossProcesses makes pairs of conns whose bytes pass through another process.
func acrossProcesses(t *testing.T, tr *rdmanet.Transport, provider string) pipeFunc {
	t.Helper()
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr, Providers: []string{provider}})
	cmd := rdmatest.Process(t, "relay", provider, l.Addr().String())
	stdin, stdout := rdmatest.Start(t, cmd)
	t.Cleanup(func() {
		_ = stdin.Close()
		assert.NoError(t, cmd.Wait())
	})
	addr := rdmatest.Line(t, stdout)
	d := &rdmanet.Dialer{Transport: tr, Providers: []string{provider}, Timeout: rdmatest.Patience}
	return func() (client, server *rdmanet.Conn) {
		t.Helper()
		c, err := d.DialContext(t.Context(), "rdma", addr)
		require.NoError(t, err)
		return c.(*rdmanet.Conn), rdmatest.Accept(t, l)
	}
}

// TestAcrossProcesses runs the conformance suite through a second process.
func TestAcrossProcesses(t *testing.T) {
	for _, provider := range rdmatest.Providers {
		t.Run(provider, func(t *testing.T) {
			tr := new(rdmanet.Transport)
			rdmatest.Cleanly(t, tr)
			pipe := acrossProcesses(t, tr, provider)
			testNettest(t, pipe)
			testEach(t, pipe, map[string]func(t *testing.T, a, b *rdmanet.Conn){
				"deadline before data": testDeadlineFirst,
				"instant wake":         testInstantWake,
				"empty calls":          testEmptyCalls,
				"half close":           testHalfClose,
				"contiguous writes":    testContiguous,
				"partial write":        testPartialWrite,
				"copying":              testCopying,
			})
		})
	}
}
