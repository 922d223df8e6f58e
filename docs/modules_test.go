package docs_test

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestRequirements: the core is built on these modules, which it requires directly: gRPC-Go, testify for
// its tests, and ringbuffer, in which the engine puts data that nobody waits for.
func TestRequirements(t *testing.T) {
	out, err := exec.Command("go", "mod", "edit", "-json", filepath.Join(root, "go.mod")).Output()
	require.NoError(t, err)
	var module struct {
		Require []struct {
			Path     string
			Indirect bool
		}
	}
	require.NoError(t, json.Unmarshal(out, &module))
	var direct []string
	for _, r := range module.Require {
		if !r.Indirect {
			direct = append(direct, r.Path)
		}
	}
	const ring = "github.com/smallnest/ringbuffer"
	assert.Subset(t, direct, []string{"google.golang.org/grpc", ring, "github.com/stretchr/testify"})
	list := exec.Command("go", "list", "-f", "{{join .Imports \"\\n\"}}", "./internal/engine")
	list.Dir = root
	out, err = list.Output()
	require.NoError(t, err)
	assert.Contains(t, strings.Fields(string(out)), ring)
}
