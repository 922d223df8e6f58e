//go:build cgo

package systemtest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed202c38ff/fabricnet/cgo/ofi"
	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/internal/fabric/ofifabric"
	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/internal/testenv"
)

func init() { rdmatest.Roles["privileged"] = loadLibfabric }

const (
	libraryVar      = "RDMANET_LIBFABRIC"
	providerPathVar = "FI_PROVIDER_PATH"
	// programVar is a variable that the program sets itself.
	programVar = "FI_LOG_INTERVAL"
)

// usersVars are variables by which a user could choose libraries, files and settings.
var usersVars = []string{
	providerPathVar, libraryVar, "RDMANET_PROVIDERS", "FI_LOG_LEVEL", "IBV_DRIVERS", "RDMAV_DRIVERS",
	"VERBS_LOG_FILE", "IPATH_DEBUG_FILENAME", "PSM2_BRAKE_FILE_NAME", "PSM3_BRAKE_FILE_NAME",
}

// loadLibfabric lets libfabric load its providers. It prints the effective user id and the permitted
// capabilities, which of usersVars Go or C find, what C finds of a variable that this program sets,
// and which library is in use.
func loadLibfabric(string, string) error {
	var caps [2]unix.CapUserData
	if err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &caps[0]); err != nil {
		return err
	}
	var kept []string
	for _, name := range usersVars {
		_, inGo := os.LookupEnv(name)
		if _, inC := ofi.Getenv(name); inGo || inC {
			kept = append(kept, name)
		}
	}
	if err := os.Setenv(programVar, "7"); err != nil {
		return err
	}
	_, err := ofifabric.New().Providers(netip.Addr{})
	if err != nil && !errors.Is(err, fabric.ErrNoProvider) && !errors.Is(err, fabric.ErrUnsupported) {
		return err
	}
	set, _ := ofi.Getenv(programVar)
	fmt.Printf("euid %d, capabilities %#x, kept [%s], set %s, library %s\n",
		os.Geteuid(), caps[0].Permitted, strings.Join(kept, " "), set, ofi.LibraryPath())
	return nil
}

// TestPrivilegedProgram: the user of a program with more rights, setuid or by a capability of its
// file, cannot make it load a library of the user's, and its variables reach neither Go nor C.
func TestPrivilegedProgram(t *testing.T) {
	testenv.NeedRoot(t)
	dir, err := os.MkdirTemp("", "privileged") // not t.TempDir, which is closed to others
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o777)) // any user may leave a trace in it
	trace := filepath.Join(dir, "trace")
	tracer(t, dir, trace)
	program := filepath.Join(dir, "program")
	exe, err := os.ReadFile("/proc/self/exe")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(program, exe, 0o755))

	for _, tt := range []struct {
		name    string
		prepare func() error
		rights  string
		kept    []string
	}{
		{"neither", func() error { return os.Chmod(program, 0o755) },
			fmt.Sprintf("euid %d, capabilities 0x0, ", testenv.StrangerUID), usersVars},
		{"setuid", func() error { return os.Chmod(program, 0o755|os.ModeSetuid) }, "euid 0, ", nil},
		{"capability", func() error {
			return errors.Join(os.Chmod(program, 0o755), grant(program, unix.CAP_NET_BIND_SERVICE))
		}, fmt.Sprintf("euid %d, capabilities %#x, ", testenv.StrangerUID, 1<<unix.CAP_NET_BIND_SERVICE), nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			require.NoError(t, tt.prepare())
			cmd := testenv.Stranger(t)
			cmd.Path = program
			cmd.Env = append(cmd.Env, rdmatest.RoleVar+"=privileged")
			for _, name := range usersVars {
				cmd.Env = append(cmd.Env, name+"="+dir)
			}
			cmd.Env = append(cmd.Env, libraryVar+"="+ofi.LibraryPath()) // one that can be loaded
			var warnings strings.Builder
			cmd.Stderr = &warnings
			out, err := cmd.Output()
			require.NoError(t, err, "another user cannot run %s, or it fails: %s", program, &warnings)
			text := string(out)
			require.Contains(t, text, tt.rights,
				"the kernel did not give the program its rights: %s is mounted nosuid (set TMPDIR), or no_new_privs is set", dir)
			assert.Contains(t, text, "kept ["+strings.Join(tt.kept, " ")+"], set 7, ")
			if os.Getenv(libraryVar) == "" { // otherwise there may be no other
				assert.Contains(t, text, "library "+ofi.LibraryPath())
			}
			if tt.kept == nil {
				assert.NoFileExists(t, trace, "the user's library was loaded")
			} else {
				assert.FileExists(t, trace, "otherwise this test could not fail")
			}
			require.NoError(t, os.RemoveAll(trace))
		})
	}
}

// tracer compiles a provider for libfabric, in dir, that makes the file trace when it is loaded.
func tracer(t *testing.T, dir, trace string) {
	t.Helper()
	source := filepath.Join(dir, "trace.c")
	require.NoError(t, os.WriteFile(source, []byte(`#include <fcntl.h>
__attribute__((constructor)) static void leave(void) { creat(TRACE, 0644); }
`), 0o644))
	cc, err := exec.Command("go", "env", "CC").Output()
	require.NoError(t, err)
	args := append(strings.Fields(string(cc)), "-shared", "-fPIC", `-DTRACE="`+trace+`"`, "-o", filepath.Join(dir, "libtrace-fi.so"), source)
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// grant gives a file a capability, as setcap(8) does: struct vfs_cap_data of capabilities(7),
// permitted and effective.
func grant(file string, capability uint) error {
	const revision2, effective = 0x02000000, 1
	data := binary.LittleEndian.AppendUint32(nil, revision2|effective)
	data = binary.LittleEndian.AppendUint64(data, 1<<capability) // the low halves of permitted and inheritable
	data = binary.LittleEndian.AppendUint64(data, 0)             // the high ones
	return unix.Setxattr(file, "security.capability", data, 0)
}
