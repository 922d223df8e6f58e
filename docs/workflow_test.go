package docs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestPinnedActions: the actions of others are pinned by commit, since a tag can be moved. A comment has
// the tag.
func TestPinnedActions(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(root, ".github/workflows/*.yaml"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	use := regexp.MustCompile(`(?m)^\s*(?:- )?uses:(.*)$`)
	pinned := regexp.MustCompile(`^ [\w-]+/[\w/-]+@[0-9a-f]{40} # v\d+(\.\d+)*$`)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, u := range use.FindAllStringSubmatch(string(text), -1) {
			assert.Regexp(t, pinned, u[1], file)
		}
	}
}

// TestWorkflow: GitHub runs make targets and nothing else, so that anybody can run
// the same.
func TestWorkflow(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(root, ".github/workflows/*.yaml"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	step := regexp.MustCompile(`(?m)^\s*(?:- )?run:(.*)$`)
	call := regexp.MustCompile(`^ (?:sudo env "PATH=\$PATH" )?make ([a-z-]+)$`)
	targets := makeTargets(t)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		steps := step.FindAllStringSubmatch(string(text), -1)
		require.NotEmpty(t, steps, file)
		for _, s := range steps {
			if m := call.FindStringSubmatch(s[1]); assert.NotNil(t, m, "%s: %s", file, s[0]) {
				assert.Contains(t, targets, m[1], file)
			}
		}
	}
}
