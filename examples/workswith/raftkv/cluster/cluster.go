// Package cluster runs the nodes of a raftkv as processes, kills and restarts them, and is their
// client. The test and the benchmark use it.
package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/seed202c38ff/fabricnet/httpdialer"
)

const (
	nodes    = 3
	patience = 30 * time.Second // with a node that is asked to end
)

// Cluster is three nodes on this host. Its methods may not be called concurrently, except for
// Put and Get.
type Cluster struct {
	// Client is for the HTTP of the nodes, over the same network as theirs.
	Client *http.Client

	program string
	flags   []string
	dir     string
	nodes   [nodes]*exec.Cmd // nil: is not running
}

// Build compiles raftkv into a folder, and returns the program.
func Build(dir string) (string, error) {
	program := filepath.Join(dir, "raftkv")
	out, err := exec.Command("go", "build", "-o", program, "github.com/seed202c38ff/fabricnet/examples/workswith/raftkv").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("raftkv: %w\n%s", err, out)
	}
	return program, nil
}

// Start starts all nodes, whose data go to a folder, over "rdma" or "tcp". Stop has to be called.
func Start(program, network, dir string, flags ...string) (*Cluster, error) {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	if network == "rdma" {
		transport = httpdialer.Transport(nil)
	}
	transport.MaxIdleConnsPerHost = 64
	transport.Proxy = nil
	var addresses []string
	for i := range nodes {
		addresses = append(addresses, address(i, 0))
	}
	c := &Cluster{
		Client:  &http.Client{Transport: transport, Timeout: 10 * time.Second},
		program: program, dir: dir,
		flags: append([]string{"-network", network, "-cluster", strings.Join(addresses, ",")}, flags...),
	}
	for i := range nodes {
		if err := c.Restart(i); err != nil {
			return nil, errors.Join(err, c.Stop())
		}
	}
	return c, nil
}

// address returns where a node listens. Each process that uses this package has a loopback address
// of its own for it, at which the ports are free.
func address(node, above int) string {
	pid := os.Getpid()
	host := fmt.Sprintf("127.%d.%d.%d", 1+pid>>16&0x7f, pid>>8&0xff, pid&0xff)
	return net.JoinHostPort(host, strconv.Itoa(7010+10*node+above))
}

// Restart starts a node that does not run.
func (c *Cluster) Restart(node int) error {
	dir := filepath.Join(c.dir, strconv.Itoa(node))
	cmd := exec.Command(c.program, append([]string{"-node", address(node, 0), "-dir", dir}, c.flags...)...)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		return err
	}
	c.nodes[node] = cmd
	return nil
}

// Kill ends a node by SIGKILL.
func (c *Cluster) Kill(node int) error {
	cmd := c.nodes[node]
	if err := cmd.Process.Kill(); err != nil {
		return err
	}
	c.nodes[node] = nil
	var killed *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &killed) {
		return fmt.Errorf("node %d: %w", node, err)
	}
	return nil
}

// Stop ends all nodes, and fails unless each ends well.
func (c *Cluster) Stop() error {
	var errs []error
	for i, cmd := range c.nodes {
		if cmd == nil {
			continue
		}
		errs = append(errs, cmd.Process.Signal(syscall.SIGTERM))
		late := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
		defer late.Stop()
		if err := cmd.Wait(); err != nil {
			errs = append(errs, fmt.Errorf("node %d: %w: %s", i, err, cmd.Stderr))
		}
	}
	c.nodes = [nodes]*exec.Cmd{}
	c.Client.CloseIdleConnections()
	return errors.Join(errs...)
}

// Leader waits until a node that runs knows a leader that runs, and returns that.
func (c *Cluster) Leader(ctx context.Context) (int, error) {
	for ctx.Err() == nil {
		for i := range nodes {
			said, err := c.call(ctx, http.MethodGet, i, "/leader", nil)
			if err != nil {
				continue
			}
			for leader := range nodes {
				if c.nodes[leader] != nil && string(said) == address(leader, 1) {
					return leader, nil
				}
			}
		}
		time.Sleep(2 * time.Millisecond)
	}
	return 0, fmt.Errorf("no leader: %w", ctx.Err())
}

// CPU returns what the nodes that run and this process have used of processors so far.
func (c *Cluster) CPU() (sum time.Duration, err error) {
	pids := []int{os.Getpid()}
	for _, cmd := range c.nodes {
		if cmd != nil {
			pids = append(pids, cmd.Process.Pid)
		}
	}
	for _, pid := range pids {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return 0, err
		}
		// proc_pid_stat(5): utime and stime, in hundredths of a second, are the 12th and 13th
		// field after the name, which is in parentheses.
		fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
		for _, field := range fields[11:13] {
			ticks, err := strconv.Atoi(field)
			if err != nil {
				return 0, err
			}
			sum += time.Duration(ticks) * (time.Second / 100)
		}
	}
	return sum, nil
}

// Put stores a value by way of a node.
func (c *Cluster) Put(ctx context.Context, node int, key string, value []byte) error {
	_, err := c.call(ctx, http.MethodPut, node, "/kv/"+key, value)
	return err
}

// Get returns a node's own copy.
func (c *Cluster) Get(ctx context.Context, node int, key string) ([]byte, error) {
	return c.call(ctx, http.MethodGet, node, "/kv/"+key, nil)
}

func (c *Cluster) call(ctx context.Context, method string, node int, path string, body []byte) ([]byte, error) {
	if c.nodes[node] == nil {
		return nil, fmt.Errorf("node %d does not run", node)
	}
	r, err := http.NewRequestWithContext(ctx, method, "http://"+address(node, 1)+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	answer, err := c.Client.Do(r)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	said, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode >= http.StatusMultipleChoices {
		err = fmt.Errorf("%s: %s", answer.Status, said)
	}
	return said, err
}
