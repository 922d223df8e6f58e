package load

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"time"

	"github.com/seed202c38ff/fabricnet/internal/printable"
)

const (
	// slack is the time that a measurement may take beyond its own: to start two processes, open
	// the fabric, and close it again.
	slack = 30 * time.Second
	// killDelay is how long a killed process may take to let go of its pipes.
	killDelay = 5 * time.Second
)

// process is a server or a client that this program has started, or one that the other machine has
// started.
type process struct {
	role string
	pid  int // 0 on the other machine
	in   io.WriteCloser
	out  *json.Decoder
	wait func() error // waits for its end
}

// start runs program in the role. It is killed when ctx ends.
func start(ctx context.Context, program, role string, j Job) (*process, error) {
	encoded, err := json.Marshal(j)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, program, role, string(encoded))
	var stderr bytes.Buffer
	cmd.WaitDelay = killDelay
	cmd.Stderr = &stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p := &process{role: role, in: in, out: json.NewDecoder(bufio.NewReader(out))}
	p.wait = func() error {
		err := cmd.Wait()
		if message := strings.TrimSpace(stderr.String()); err != nil && message != "" {
			return fmt.Errorf("%w: %s", err, firstLines(message, 3))
		}
		return err
	}
	run := cmd.Start
	if j.OneCore {
		run = func() error { return onOneCore(cmd.Start) }
	}
	if err := run(); err != nil {
		return nil, err
	}
	p.pid = cmd.Process.Pid
	return p, nil
}

// ask sends a command and waits for its reply.
func (p *process) ask(command string) (reply, error) {
	if _, err := fmt.Fprintln(p.in, command); err != nil {
		return reply{}, fmt.Errorf("%s: %w", p.role, err)
	}
	return p.receive()
}

func (p *process) receive() (reply, error) {
	var r reply
	if err := p.out.Decode(&r); err != nil {
		return reply{}, fmt.Errorf("%s ended early: %w", p.role, err)
	}
	if r.Error != "" {
		return reply{}, fmt.Errorf("%s: %s", p.role, printable.Lines(r.Error))
	}
	return r, nil
}

// stop asks the process to clean up and waits for its end.
func (p *process) stop() error {
	// If the process has gone, the pipe is closed already; Wait reports that.
	_ = p.in.Close()
	failed := p.lastError() // before wait, which closes the pipe
	err := p.wait()
	switch {
	case err != nil && failed != "":
		return fmt.Errorf("%s: %w: %s", p.role, err, failed)
	case err != nil:
		return fmt.Errorf("%s: %w", p.role, err)
	case failed != "":
		return fmt.Errorf("%s: %s", p.role, failed)
	}
	return nil
}

// lastError reads the process's output to its end, and returns the error it
// ended with, such as that of closing the fabric.
func (p *process) lastError() string {
	failed := ""
	for {
		var r reply
		if p.out.Decode(&r) != nil {
			return failed
		}
		if r.Error != "" {
			failed = printable.Lines(r.Error)
		}
	}
}

func firstLines(s string, n int) string {
	lines := strings.Split(s, "\n")
	return strings.Join(lines[:min(n, len(lines))], "; ")
}
