package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestShortenedTestsRunInFull: make test runs what is repeated less often under the race detector
// (race.Fewer, or the flag for seeds, whose default it is) without it, too.
func TestShortenedTestsRunInFull(t *testing.T) {
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	require.NoError(t, err)
	m := regexp.MustCompile(`(?m)^UNRACED := (.*)$`).FindSubmatch(makefile)
	require.NotNil(t, m)
	unraced, found := regexp.MustCompile(string(m[1])), 0
	err = filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || !strings.HasPrefix(f.Name.Name, "Test") {
				continue
			}
			ast.Inspect(f, func(n ast.Node) bool {
				if id, ok := n.(*ast.Ident); ok && (id.Name == "Fewer" || id.Name == "seedsFlag") {
					found++
					assert.True(t, unraced.MatchString(f.Name.Name), "add %s of %s to UNRACED in the Makefile", f.Name.Name, path)
				}
				return true
			})
		}
		return nil
	})
	require.NoError(t, err)
	assert.Positive(t, found)
}
