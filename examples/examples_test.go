// Package examples_test runs every example in its one-command form.
package examples_test

import (
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/testenv"
)

func TestExamplesRun(t *testing.T) {
	for _, e := range []struct {
		name string
		args []string // {provider} stands for the provider's name
		want []string // here, too
	}{
		{"http", []string{"-size", "8"}, []string{"provider {provider}", "downloaded 8388608 bytes", "the hashes are that of the file served"}},
		{"grpc", nil, []string{`unary: "hello"`, "over rdma", `stream: "three"`}},
		{"tls", nil, []string{`TLS 1.3: "hello over TLS over the fabric"`}},
		{"bulk", []string{"-size", "8"}, []string{"provider {provider}", "sent 8388608 bytes", "on both sides"}},
		{"messages", []string{"-provider", "{provider}"}, []string{
			`server: received "hello over {provider}"`, `client: received "hello to you, too"`,
		}},
		{"rdmawrite", []string{"-provider", "{provider}"}, []string{
			"writer: wrote 50000 bytes over {provider}", "owner: a write is complete, with data 4711", "owner: 50000 bytes are there",
		}},
		{"rdmawrite", []string{"-provider", "{provider}", "-data=false"}, []string{"owner: 50000 bytes are there"}},
	} {
		program := build(t, e.name)
		for _, provider := range testenv.Providers() {
			name := strings.NewReplacer("{provider}", provider)
			args := strings.Fields(name.Replace(strings.Join(e.args, " ")))
			t.Run(strings.Join(append([]string{e.name, provider}, e.args...), " "), func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				run := exec.CommandContext(ctx, program, args...)
				run.Env = append(run.Environ(), "RDMANET_PROVIDERS="+provider)
				run.WaitDelay = time.Second
				out, err := run.CombinedOutput()
				require.NoError(t, err, "%s", out)
				for _, text := range e.want {
					assert.Contains(t, string(out), name.Replace(text))
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
