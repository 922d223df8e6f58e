package docs_test

import (
	"encoding/xml"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const module = "github.com/seed202c38ff/fabricnet/"

// forTests are the packages that only tests use.
var forTests = []string{"internal/race", "internal/testenv", "internal/rdmatest", "internal/systemtest"}

// imports maps each package of the core that is not a program to the packages of the
// core that it imports.
func imports(t *testing.T) map[string][]string {
	t.Helper()
	cmd := exec.Command("go", "list", "-f", "{{if and .GoFiles (ne .Name `main`)}}{{.ImportPath}}{{range .Imports}} {{.}}{{end}}{{end}}", "./...")
	cmd.Dir = root
	out, err := cmd.Output()
	require.NoError(t, err)
	list := make(map[string][]string)
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(line)
		words = slices.DeleteFunc(words, func(w string) bool { return !strings.HasPrefix(w, module) })
		for i := range words {
			words[i] = strings.TrimPrefix(words[i], module)
		}
		if len(words) > 0 && !slices.Contains(forTests, words[0]) {
			list[words[0]] = words[1:]
		}
	}
	require.Contains(t, list["rdmanet"], "internal/engine")
	return list
}

// below adds to found the package and all packages that it needs, directly or not.
func below(name string, imports map[string][]string, found map[string]bool) map[string]bool {
	found[name] = true
	for _, other := range imports[name] {
		if !found[other] {
			below(other, imports, found)
		}
	}
	return found
}

// TestPicture: the picture shows, at both ends, every package that a byte of gRPC's can pass
// through, and no other besides the simulated fabric.
func TestPicture(t *testing.T) {
	text, err := os.ReadFile("img/architecture.svg")
	require.NoError(t, err)
	var picture struct {
		Groups []struct {
			Package string `xml:"data-package,attr"`
		} `xml:"g"`
	}
	require.NoError(t, xml.Unmarshal(text, &picture))
	shown := make(map[string]int)
	for _, g := range picture.Groups {
		if g.Package != "" {
			shown[g.Package]++
		}
	}
	found := below("grpcdialer", imports(t), map[string]bool{"internal/fabric/simfabric": true})
	for _, none := range []string{"metrics", "internal/printable", "internal/fabric/fdbell"} { // no byte passes through these: counters, texts, sleep
		delete(found, none)
	}
	for name := range found {
		assert.Equal(t, 2, shown[name], "boxes for %s", name)
		delete(shown, name)
	}
	assert.Empty(t, shown, "boxes without a package")
}

// TestPackagesDependDownwards: architecture.md lists each package before those that it
// imports.
func TestPackagesDependDownwards(t *testing.T) {
	text := documentAt(t, "docs/architecture.md").text
	_, text, found := strings.Cut(text, "They depend one way, downwards:\n")
	require.True(t, found)
	var order []string
	for _, m := range regexp.MustCompile(`(?m)^ {6,}([a-z/]+) {2,}`).FindAllStringSubmatch(text, -1) {
		order = append(order, m[1])
		assert.DirExists(t, filepath.Join(root, m[1]))
	}
	for name, uses := range imports(t) {
		name = strings.TrimSuffix(strings.TrimSuffix(name, "/ofifabric"), "/simfabric")
		require.Contains(t, order, name)
		for _, other := range uses {
			if other = strings.TrimSuffix(other, "/ofifabric"); other != name {
				assert.Less(t, slices.Index(order, name), slices.Index(order, other), "%s imports %s", name, other)
			}
		}
	}
}
