package rdmanet_test

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

const nobody = 65534

func init() { rdmatest.Roles["say its only namespace"] = sayOnlyNetns }

// sayOnlyNetns gives up all capabilities, in one case after a thread has moved to a new namespace.
func sayOnlyNetns(_, how string) error {
	if how == "moved" {
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
	}
	if how != "privileged" && os.Getuid() == 0 {
		if err := syscall.Setuid(nobody); err != nil {
			return err
		}
	}
	_, err := fmt.Println(rdmanet.OnlyNetns())
	return err
}

// TestOnlyNetns: a dial need not ask for its thread's namespace if no thread can leave it.
func TestOnlyNetns(t *testing.T) {
	link, err := os.Readlink("/proc/self/ns/net")
	require.NoError(t, err)
	own := strings.TrimSuffix(strings.TrimPrefix(link, "net:["), "]")
	var caps [2]unix.CapUserData
	require.NoError(t, unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &caps[0]))
	for how, want := range map[string]string{"unprivileged": own, "privileged": "0", "moved": "0"} {
		t.Run(how, func(t *testing.T) {
			if how != "unprivileged" && caps[0].Permitted&(1<<unix.CAP_SYS_ADMIN) == 0 {
				t.Skip("this takes CAP_SYS_ADMIN")
			}
			out, err := rdmatest.Process(t, "say its only namespace", "", how).Output()
			require.NoError(t, err)
			assert.Equal(t, want+"\n", string(out))
		})
	}
}
