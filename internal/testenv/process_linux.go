package testenv

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// StrangerUID is another user: nobody.
const StrangerUID = 65534

// NeedRoot skips a test that cannot do without.
func NeedRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("NOT TESTED: this starts processes of another user or mounts file systems, for which it must be run by root")
	}
}

// Stranger is the test binary as a process of another user.
func Stranger(t testing.TB) *exec.Cmd {
	t.Helper()
	NeedRoot(t)
	cmd := exec.Command("/proc/self/exe") // its own path may be closed to others
	cmd.Env = os.Environ()
	cmd.Dir = "/"
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential: &syscall.Credential{Uid: StrangerUID, Gid: StrangerUID},
		Pdeathsig:  syscall.SIGKILL,
	}
	return cmd
}

// ownShmVar names the test for which a process has a /dev/shm of its own.
const ownShmVar = "RDMANET_TEST_OWN_SHM"

// OwnShm runs the calling test once more, in a process with a mount namespace and a tmpfs
// at /dev/shm of its own, mounted with options, and reports true there. The first one waits
// for it, and is left nothing to do.
func OwnShm(t *testing.T, options string) bool {
	t.Helper()
	if os.Getenv(ownShmVar) == t.Name() {
		err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "") // nobody else sees what follows
		if err == nil {
			err = unix.Mount("tmpfs", "/dev/shm", "tmpfs", 0, options)
		}
		if err != nil {
			t.Fatal(err)
		}
		return true
	}
	NeedRoot(t)
	cmd := exec.Command("/proc/self/exe", "-test.v="+verbose(), "-test.run=^"+strings.ReplaceAll(t.Name(), "/", "$/^")+"$")
	cmd.Env = append(os.Environ(), ownShmVar+"="+t.Name())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	t.Logf("in a process with its own /dev/shm:\n%s", out)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(out), "PASS") {
		t.Fatal("the test did not run there")
	}
	return false
}

func verbose() string {
	if testing.Verbose() {
		return "true"
	}
	return "false"
}

// Fill makes a file that leaves so many bytes free in /dev/shm, and returns how to remove
// it.
func Fill(t *testing.T, leave int64) (empty func()) {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs("/dev/shm", &st); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create("/dev/shm/fill")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if size := int64(st.Bavail)*int64(st.Bsize) - leave; size > 0 {
		if err := unix.Fallocate(int(f.Fd()), 0, 0, size); err != nil {
			t.Fatal(err)
		}
	}
	return func() {
		if err := os.Remove(f.Name()); err != nil {
			t.Error(err)
		}
	}
}
