package workswith_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestDocument: each line that docs/works-with.md tells its readers to add is one of the tests', or
// of raftkv's.
func TestDocument(t *testing.T) {
	lines := make(map[string]bool)
	require.NoError(t, filepath.WalkDir(".", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".go" {
			return err
		}
		source, err := os.ReadFile(path)
		for line := range strings.Lines(string(source)) {
			lines[strings.TrimSpace(line)] = true
		}
		return err
	}))
	text, err := os.ReadFile("../../docs/works-with.md")
	require.NoError(t, err)
	added := 0
	for line := range strings.Lines(string(text)) {
		if code, ok := strings.CutPrefix(line, "+"); ok {
			added++
			assert.Contains(t, lines, strings.TrimSpace(code))
		}
	}
	assert.Positive(t, added)
}
