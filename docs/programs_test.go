package docs_test

import (
	"context"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestPrograms: every block of Go that begins with a package clause compiles
// and passes go vet, and the guides contain no other blocks of Go.
func TestPrograms(t *testing.T) {
	whole := []string{"docs/guide.md", "docs/grpc-and-http.md"}
	programs := 0
	for _, d := range documents(t) {
		for _, b := range d.blocks {
			switch {
			case b.language != "go":
			case strings.HasPrefix(b.code, "package "):
				programs++
				t.Run(fmt.Sprintf("%s line %d", d.path, b.line), func(t *testing.T) { vet(t, b.code) })
			default:
				assert.NotContains(t, whole, d.path, "the block in line %d is no program", b.line)
			}
		}
	}
	assert.Positive(t, programs)
}

// vet runs go vet on a program as part of this module, from a directory outside it.
func vet(t *testing.T, code string) {
	t.Helper()
	formatted, err := format.Source([]byte(code))
	require.NoError(t, err)
	assert.Equal(t, string(formatted), code, "gofmt")
	file := filepath.Join(t.TempDir(), "main.go")
	require.NoError(t, os.WriteFile(file, []byte(code), 0o600))
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "vet", file)
	cmd.Dir = root
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// qualified matches names of the public packages in code, such as
// `Transport.MemoryLimit` and `rdmanet.ErrMemory`.
var qualified = regexp.MustCompile(`\b([A-Za-z]+)\.([A-Z][A-Za-z]*)\b`)

// TestNames: the fields, methods and variables of rdmanet, grpcdialer, httpdialer, framing and
// pool that the documents name exist.
func TestNames(t *testing.T) {
	known := make(map[string]map[string]bool) // what a package or type has
	for _, dir := range []string{"rdmanet", "grpcdialer", "httpdialer", "framing", "pool"} {
		declared(t, dir, known)
	}
	require.True(t, known["rdmanet"]["Dialer"] && known["Dialer"]["Fallback"] && known["Conn"]["Info"])
	checked := 0
	for _, d := range documents(t) {
		for _, span := range codeSpan.FindAllString(d.text, -1) {
			for _, m := range qualified.FindAllStringSubmatch(span, -1) {
				if names := known[m[1]]; names != nil {
					checked++
					assert.True(t, names[m[2]], "%s: there is no %s", d.path, m[0])
				}
			}
		}
	}
	assert.Positive(t, checked)
}

// declared adds the exported names of a package, and the fields and methods of its exported
// types. Types of the same name in several packages are taken together.
func declared(t *testing.T, dir string, known map[string]map[string]bool) {
	t.Helper()
	add := func(owner, name string) {
		if known[owner] == nil {
			known[owner] = make(map[string]bool)
		}
		known[owner][name] = true
	}
	files, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
	require.NoError(t, err)
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, decl := range f.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				owner := dir
				if d.Recv != nil {
					owner = receiver(d.Recv.List[0].Type)
				}
				add(owner, d.Name.Name)
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					addSpec(dir, spec, add)
				}
			}
		}
	}
}

func addSpec(dir string, spec ast.Spec, add func(owner, name string)) {
	switch s := spec.(type) {
	case *ast.ValueSpec:
		for _, name := range s.Names {
			add(dir, name.Name)
		}
	case *ast.TypeSpec:
		add(dir, s.Name.Name)
		if st, ok := s.Type.(*ast.StructType); ok {
			for _, field := range st.Fields.List {
				for _, name := range field.Names {
					add(s.Name.Name, name.Name)
				}
			}
		}
	}
}

// receiver returns the name of a method's type.
func receiver(e ast.Expr) string {
	if star, ok := e.(*ast.StarExpr); ok {
		e = star.X
	}
	name, _ := e.(*ast.Ident)
	if name == nil {
		return "" // of a generic type
	}
	return name.Name
}
