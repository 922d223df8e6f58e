//go:build cgo

package systemtest

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

func init() { rdmatest.Roles["heir"] = lookAround }

// lookAround prints the internet sockets that this process has inherited.
func lookAround(string, string) error {
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, e := range list {
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			return err
		}
		if domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN); err == nil && domain != unix.AF_UNIX {
			local, _ := unix.Getsockname(fd)
			peer, _ := unix.Getpeername(fd)
			fmt.Println(fd, local, peer)
		}
	}
	return nil
}

// heirs lists the internet sockets that a child of this process inherits.
func heirs(t *testing.T) []string {
	cmd := testenv.Stranger(t)
	cmd.Env = append(cmd.Env, rdmatest.RoleVar+"=heir")
	out, err := cmd.Output()
	require.NoError(t, err)
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}

// TestChildrenInheritNoSockets: the processes that the program starts do not inherit libfabric's
// sockets, which libfabric opens without a close-on-exec flag.
func TestChildrenInheritNoSockets(t *testing.T) {
	for _, provider := range testenv.Shared() {
		t.Run(provider, func(t *testing.T) {
			before := heirs(t) // strangers' connections that other tests have left in the library
			tr, other := new(rdmanet.Transport), new(rdmanet.Transport)
			rdmatest.Cleanly(t, tr)
			t.Cleanup(func() { assert.NoError(t, other.Close()) })
			l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: other, Providers: []string{provider}})
			for range 3 {
				d := &rdmanet.Dialer{Transport: tr, Providers: []string{provider}, DisableReuse: true, Timeout: rdmatest.Patience}
				c, s := rdmatest.Meet(t, d, l)
				defer rdmatest.CloseAll(t, c, s)
				rdmatest.Echo(t, c, s)
			}
			_, addr := server(t, "echo", provider) // a peer in another process, too
			c := dial(t, &rdmanet.Dialer{Transport: tr, Providers: []string{provider}, Timeout: rdmatest.Patience}, addr)
			defer c.Close()
			_, err := c.Write([]byte("hello"))
			require.NoError(t, err)
			assert.EventuallyWithT(t, func(c *assert.CollectT) {
				assert.Subset(c, append(before, ""), heirs(t))
			}, rdmatest.Patience, 10*time.Millisecond)
		})
	}
}

// TestChildrenInheritNoSocketsOfListeners: nor do they inherit those of a listener without peers,
// whose endpoint has connected to itself and stays connected.
func TestChildrenInheritNoSocketsOfListeners(t *testing.T) {
	for _, provider := range testenv.Shared() {
		t.Run(provider, func(t *testing.T) {
			before := heirs(t)
			tr := new(rdmanet.Transport)
			rdmatest.Cleanly(t, tr)
			open := len(rdmatest.OpenFiles(t))
			rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr, Providers: []string{provider}})
			rdmatest.Eventually(t, func() bool { return len(rdmatest.OpenFiles(t)) > open+1 }, "its endpoint has sockets")
			assert.EventuallyWithT(t, func(c *assert.CollectT) {
				assert.Subset(c, append(before, ""), heirs(t))
			}, rdmatest.Patience, 100*time.Millisecond)
			time.Sleep(100 * time.Millisecond) // for sockets of a path check, which nothing announces
			assert.Subset(t, append(before, ""), heirs(t))
		})
	}
}
