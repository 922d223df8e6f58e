package testenv

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// StrangerUID is the user id of another user: nobody.
const StrangerUID = 65534

// NeedRoot skips a test that must be run by root, unless it is.
func NeedRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("NOT TESTED: this starts processes of another user or mounts file systems, for which it must be run by root")
	}
}

// Stranger returns a command that runs the test binary as a process of another user.
func Stranger(t testing.TB) *exec.Cmd {
	t.Helper()
	NeedRoot(t)
	cmd := exec.Command("/proc/self/exe") // others may have no access to its own path
	cmd.Env = os.Environ()
	cmd.Dir = "/"
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential: &syscall.Credential{Uid: StrangerUID, Gid: StrangerUID},
		Pdeathsig:  syscall.SIGKILL,
	}
	return cmd
}

// ownShmVar is the variable that names the test for which a process has a /dev/shm of its own.
const ownShmVar = "RDMANET_TEST_OWN_SHM"

// OwnShm runs the calling test once more, in a process that has a mount namespace of its own and,
// at /dev/shm, a tmpfs of its own, mounted with options. There it returns true. In the first process it
// waits for the other one, and returns false: the test has nothing left to do.
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

// Fill makes a file in /dev/shm that leaves that many bytes free there, and returns a function that
// removes it.
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
