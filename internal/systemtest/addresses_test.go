package systemtest

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

func init() {
	rdmatest.Roles["say its addresses"] = sayAddresses
	rdmatest.Roles["drop its conns"] = dropConns
}

// talking is how many conns there are at a time.
const talking = 50

// sayAddresses says on each of its conns what its addresses are, and waits until all are closed.
func sayAddresses(provider, addr string) error {
	d := rdmanet.Dialer{Providers: []string{provider}, Timeout: rdmatest.Patience}
	var conns []net.Conn
	for range talking {
		c, err := d.Dial("rdma", addr)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintln(c, c.LocalAddr().(*net.TCPAddr), c.RemoteAddr().(*net.TCPAddr)); err != nil {
			return err
		}
		conns = append(conns, c)
	}
	for _, c := range conns {
		if _, err := io.Copy(io.Discard, c); err != nil {
			return err
		}
		if err := c.Close(); err != nil {
			return err
		}
	}
	return rdmanet.DefaultTransport.Close()
}

// TestAddressesOfProcesses: no two live conns have equal addresses, from whichever processes of a
// host they are, and both sides agree.
func TestAddressesOfProcesses(t *testing.T) {
	for _, provider := range rdmatest.Providers {
		t.Run(provider, func(t *testing.T) {
			tr := new(rdmanet.Transport)
			rdmatest.Cleanly(t, tr)
			l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr, Providers: []string{provider}})
			for range 2 {
				cmd := rdmatest.Process(t, "say its addresses", provider, l.Addr().String())
				require.NoError(t, cmd.Start())
				defer func() { assert.NoError(t, cmd.Wait()) }()
			}
			seen := make(map[string]bool)
			conns := make([]net.Conn, 0, 2*talking)
			for range 2 * talking {
				c := rdmatest.Accept(t, l)
				text, err := bufio.NewReader(rdmatest.OnlyReader{Reader: c}).ReadString('\n')
				require.NoError(t, err)
				assert.Equal(t, fmt.Sprintln(c.RemoteAddr().(*net.TCPAddr), c.LocalAddr().(*net.TCPAddr)), text)
				seen[c.RemoteAddr().String()] = true
				conns = append(conns, c)
			}
			assert.Len(t, seen, 2*talking)
			rdmatest.CloseAll(t, conns...)
		})
	}
}

// dropConns dials, drops every conn, waits until its own ends have gone, and then lives until its
// input ends: a process that exits need not have told a busy peer the end of each conn.
func dropConns(provider, addr string) error {
	d := rdmanet.Dialer{Providers: []string{provider}, Timeout: rdmatest.Patience}
	for range droppedConns {
		if _, err := d.Dial("rdma", addr); err != nil {
			return err
		}
	}
	for start := time.Now(); rdmanet.DefaultTransport.Stats().Conns > 0; time.Sleep(10 * time.Millisecond) {
		if runtime.GC(); time.Since(start) > 2*rdmatest.Patience {
			return fmt.Errorf("%d conns have not ended", rdmanet.DefaultTransport.Stats().Conns)
		}
	}
	if n := rdmanet.DefaultTransport.Stats().Dropped; n != uint64(droppedConns) {
		return fmt.Errorf("%d conns were found to be dropped", n)
	}
	fmt.Println("all have ended")
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

const droppedConns = 5000

// TestDroppedConnsOfProcesses: the conns that a process has dropped without Close end on both
// sides while it lives.
func TestDroppedConnsOfProcesses(t *testing.T) {
	for _, provider := range rdmatest.Providers {
		t.Run(provider, func(t *testing.T) {
			tr := new(rdmanet.Transport)
			rdmatest.Cleanly(t, tr)
			l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr, Providers: []string{provider}, Backlog: droppedConns})
			cmd := rdmatest.Process(t, "drop its conns", provider, l.Addr().String())
			in, out := rdmatest.Start(t, cmd)
			for range droppedConns {
				c := rdmatest.Accept(t, l)
				go func() {
					_, err := io.Copy(io.Discard, rdmatest.OnlyReader{Reader: c})
					assert.NoError(t, err, "it ends as if it had been closed")
					assert.NoError(t, c.Close())
				}()
			}
			assert.Equal(t, "all have ended", rdmatest.Line(t, out))
			rdmatest.Eventually(t, func() bool { return tr.Stats().Conns == 0 }, "here, too")
			require.NoError(t, in.Close())
			require.NoError(t, cmd.Wait())
			assert.Zero(t, tr.Stats().Dropped)
		})
	}
}
