package docs_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var (
	testName = regexp.MustCompile(`\bTest[A-Z]\w*`)
	testFunc = regexp.MustCompile(`(?m)^func (Test[A-Z]\w*)\(t \*testing\.T\)`)
)

// TestNamedTests: the tests that docs/security.md cites as evidence exist.
func TestNamedTests(t *testing.T) {
	tests := map[string]bool{}
	require.NoError(t, filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range testFunc.FindAllStringSubmatch(string(text), -1) {
			tests[m[1]] = true
		}
		return err
	}))
	named := testName.FindAllString(documentAt(t, "docs/security.md").text, -1)
	assert.NotEmpty(t, named)
	for _, name := range named {
		assert.True(t, tests[name], "%s: no such test", name)
	}
}
