package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestCode(t *testing.T) {
	const before = "package x\n\n// F is one.\nfunc F() {\n\tg() // why\n}\n"
	for name, c := range map[string]struct {
		before, after string
		same          bool
	}{
		"other words":           {before, "package x\n\n// F is two,\n// no less.\nfunc F() {\n\tg()\n}\n", true},
		"no words":              {before, "package x\n\nfunc F() {\n\t/* what */ g()\n}\n", true},
		"another name":          {before, "package x\n\n// F is one.\nfunc G() {\n\tg() // why\n}\n", false},
		"another string":        {"package x; const s = `// a`", "package x; const s = `// b`", false},
		"a statement less":      {before, "package x\n\n// F is one.\nfunc F() {\n\t// g() why\n}\n", false},
		"another constraint":    {"//go:build linux\n\npackage x\n", "//go:build darwin\n\npackage x\n", false},
		"a directive less":      {"package x\n\n//go:noinline\nfunc F() {}\n", "package x\n\nfunc F() {}\n", false},
		"another output":        {"package x\nfunc ExampleF() {\n\tF()\n\t// Output:\n\t// 1\n}\n", "package x\nfunc ExampleF() {\n\tF()\n\t// Output:\n\t// 2\n}\n", false},
		"words above an output": {"package x\nfunc ExampleF() {\n\tF() // a\n\n\t// Output: 1\n}\n", "package x\nfunc ExampleF() {\n\tF() // b\n\n\t// Output: 1\n}\n", true},
		"another include":       {"package x\n\n// #include <a.h>\nimport \"C\"\n", "package x\n\n// #include <b.h>\nimport \"C\"\n", false},
		"another preamble":      {"package x\n\n/*\nint a;\n*/\nimport \"C\"\n", "package x\n\n/*\nint b;\n*/\nimport \"C\"\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			if c.same {
				assert.Equal(t, code([]byte(c.before)), code([]byte(c.after)))
			} else {
				assert.NotEqual(t, code([]byte(c.before)), code([]byte(c.after)))
			}
		})
	}
}
