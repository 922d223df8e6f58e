// Package examples_test runs every example in its one-command form.
package examples_test

import (
	"context"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestExamplesRun(t *testing.T) {
	for _, e := range []struct {
		name string
		args []string
		want []string
	}{
		{"http", []string{"-size", "8"}, []string{"downloaded 8388608 bytes", "the hash is that of the file served"}},
		{"grpc", nil, []string{`unary: "hello"`, "over rdma", `stream: "three"`}},
		{"tls", nil, []string{`TLS 1.3: "hello over TLS over the fabric"`}},
	} {
		program := build(t, e.name)
		for _, provider := range testenv.Providers() {
			t.Run(e.name+" "+provider, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				run := exec.CommandContext(ctx, program, e.args...)
				run.Env = append(run.Environ(), "RDMANET_PROVIDERS="+provider)
				run.WaitDelay = time.Second
				out, err := run.CombinedOutput()
				require.NoError(t, err, "%s", out)
				for _, text := range e.want {
					assert.Contains(t, string(out), text)
				}
				if e.name == "http" {
					assert.Contains(t, string(out), "provider "+provider)
				}
			})
		}
	}
}

// build compiles an example.
func build(t *testing.T, name string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), name)
	out, err := exec.Command("go", "build", "-o", program, "./"+name).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return program
}
