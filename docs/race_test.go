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
// (race.Fewer, or the flag for seeds, whose default it is) without it, too, and so does it with what
// is not compiled with it. Only tests themselves do so, not what they call, which would not show.
func TestShortenedTestsRunInFull(t *testing.T) {
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	require.NoError(t, err)
	names := regexp.MustCompile(`(?m)^UNRACED := (.*)$`).FindSubmatch(makefile)
	packages := regexp.MustCompile(`(?m)^\t\$\(GO\) test .*-run '\$\(UNRACED\)' (.*)$`).FindSubmatch(makefile)
	require.True(t, names != nil && packages != nil)
	unraced, found := regexp.MustCompile(string(names[1])), 0
	in := func(path string) bool {
		dir, err := filepath.Rel(root, filepath.Dir(path))
		require.NoError(t, err)
		for pattern := range strings.FieldsSeq(string(packages[1])) {
			tree, below := strings.CutSuffix(strings.TrimPrefix(pattern, "./"), "/...")
			if dir == tree || below && strings.HasPrefix(dir, tree+"/") {
				return true
			}
		}
		return false
	}
	err = filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution|parser.ParseComments)
		require.NoError(t, err)
		leftOut := withoutRace(file)
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			test := ok && strings.HasPrefix(f.Name.Name, "Test")
			if !ok || (!test || !leftOut) && !shortened(f) {
				continue
			}
			found++
			assert.True(t, test, "%s of %s: let the test call race.Fewer", f.Name.Name, path)
			assert.True(t, unraced.MatchString(f.Name.Name), "add %s of %s to UNRACED in the Makefile", f.Name.Name, path)
			assert.True(t, in(path), "add the package of %s to the run with UNRACED in the Makefile", path)
		}
		return nil
	})
	require.NoError(t, err)
	assert.Positive(t, found)
}

// withoutRace reports whether the race detector leaves out a file.
func withoutRace(file *ast.File) bool {
	for _, c := range file.Comments {
		if text := c.List[0].Text; c.Pos() < file.Package && strings.HasPrefix(text, "//go:build ") && strings.Contains(text, "!race") {
			return true
		}
	}
	return false
}

// shortened reports whether a function does less under the race detector.
func shortened(f *ast.FuncDecl) (yes bool) {
	ast.Inspect(f, func(n ast.Node) bool {
		id, ok := n.(*ast.Ident)
		yes = yes || ok && (id.Name == "Fewer" || id.Name == "seedsFlag")
		return !yes
	})
	return yes
}
