package workswith_test

import (
	"bufio"
	"fmt"
	"log"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// patience is how long anything may take that takes a moment as a rule.
const patience = 30 * time.Second

// program is fabricnet, which TestMain builds.
var program string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "workswith")
	if err != nil {
		log.Print(err)
		return 1
	}
	defer os.RemoveAll(dir)
	program = filepath.Join(dir, "fabricnet")
	build := exec.Command("go", "build", "-o", program, ".")
	build.Dir = "../../cmd/fabricnet"
	if out, err := build.CombinedOutput(); err != nil {
		log.Printf("fabricnet: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

var listening = regexp.MustCompile(`msg=listening at=rdma://(\S+)`)

// proxy starts fabricnet proxy in front of a server, and returns its address on the fabric.
func proxy(t *testing.T, server string) (addr string) {
	t.Helper()
	cmd := exec.Command(program, "proxy", "-listen", "rdma://127.0.0.1:0", "-to", server, "-grace", "100ms")
	stderr, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	found, ended := make(chan string, 1), make(chan struct{})
	go func() {
		defer close(ended)
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			fmt.Fprintln(t.Output(), "proxy:", lines.Text())
			if m := listening.FindStringSubmatch(lines.Text()); m != nil {
				found <- m[1]
			}
		}
	}()
	t.Cleanup(func() {
		assert.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
		<-ended
		assert.NoError(t, cmd.Wait())
	})
	select {
	case addr = <-found:
	case <-ended:
		require.FailNow(t, "the proxy has ended")
	case <-time.After(patience):
		require.FailNow(t, "the proxy does not listen")
	}
	return addr
}

// freePort returns a port of loopback that was free a moment ago.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}
