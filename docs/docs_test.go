// Package docs_test checks what the documents say against the repository: links,
// commands, programs, and the names of packages.
package docs_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const root = ".."

// document is a Markdown file, taken apart.
type document struct {
	path   string // below root
	text   string // without the blocks
	blocks []block
}

// block is a fenced block of code.
type block struct {
	language, code string
	line           int
}

var fence = regexp.MustCompile("^( *)```(.*)$")

// parse separates blocks of code from the text around them.
func parse(path, text string) document {
	d := document{path: path}
	var open *block
	indent := ""
	var prose []string
	for i, line := range strings.Split(text, "\n") {
		m := fence.FindStringSubmatch(line)
		switch {
		case m != nil && open == nil:
			indent, open = m[1], &block{language: m[2], line: i + 1}
		case m != nil:
			d.blocks = append(d.blocks, *open)
			open = nil
		case open != nil:
			open.code += strings.TrimPrefix(line, indent) + "\n"
		default:
			prose = append(prose, line)
		}
	}
	d.text = strings.Join(prose, "\n")
	return d
}

// documents are all Markdown files of the repository.
func documents(t *testing.T) (list []document) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && path != root && (strings.HasPrefix(e.Name(), ".") || e.Name() == "bin"):
			return fs.SkipDir
		case e.IsDir() || filepath.Ext(path) != ".md":
			return nil
		}
		text, err := os.ReadFile(path)
		list = append(list, parse(strings.TrimPrefix(path, root+"/"), string(text)))
		return err
	}))
	require.NotEmpty(t, list)
	return list
}

func documentAt(t *testing.T, path string) document {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, path))
	require.NoError(t, err)
	return parse(path, string(text))
}

func TestParse(t *testing.T) {
	d := parse("x.md", "a\n```go\nb\n```\nc\n- d\n  ```sh\n  make e\n  ```\n")
	assert.Equal(t, "a\nc\n- d\n", d.text)
	assert.Equal(t, []block{{"go", "b\n", 2}, {"sh", "make e\n", 7}}, d.blocks)
}

var (
	codeSpan = regexp.MustCompile("`[^`]*`")
	link     = regexp.MustCompile(`\]\(([^)\s]+)\)|(?:src|srcset|href)="([^"]+)"`)
	heading  = regexp.MustCompile(`(?m)^#+ +(.*)$`)
	notInID  = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// anchors are the names under which a document's headings can be linked to.
func anchors(text string) (ids []string) {
	for _, m := range heading.FindAllStringSubmatch(text, -1) {
		id := notInID.ReplaceAllString(strings.ToLower(m[1]), "")
		ids = append(ids, strings.ReplaceAll(id, " ", "-"))
	}
	return ids
}

func TestAnchors(t *testing.T) {
	assert.Equal(t, []string{"5-which-provider-is-used", "shm-and-make-x"}, anchors("# 5. Which provider is used?\ntext\n## shm, and `make x`\n"))
}

// TestLinks: every relative link leads to a file, and to a heading if it names one.
func TestLinks(t *testing.T) {
	links := 0
	for _, d := range documents(t) {
		for _, m := range link.FindAllStringSubmatch(codeSpan.ReplaceAllString(d.text, ""), -1) {
			target := m[1] + m[2]
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			links++
			path, id, _ := strings.Cut(target, "#")
			file := filepath.Join(filepath.Dir(d.path), path)
			if path == "" {
				file = d.path
			}
			if !exists(t, file, d.path, target) || id == "" {
				continue
			}
			assert.Contains(t, anchors(documentAt(t, file).text), id, "%s: %s", d.path, target)
		}
	}
	assert.Positive(t, links)
}

func exists(t *testing.T, file, in, target string) bool {
	t.Helper()
	_, err := os.Stat(filepath.Join(root, file))
	return assert.NoError(t, err, "%s: %s", in, target)
}

// TestIndex: docs/README.md names every document.
func TestIndex(t *testing.T) {
	index := documentAt(t, "docs/README.md").text
	for _, d := range documents(t) {
		if filepath.Dir(d.path) == "docs" && d.path != "docs/README.md" {
			assert.Contains(t, index, "]("+filepath.Base(d.path)+")")
		}
	}
}

// makeTarget matches uses of make in code, such as `make bench`.
var makeTarget = regexp.MustCompile(`(?:^|[\s;&|(])make ([a-z][a-z-]*)`)

func makeTargets(t *testing.T) (names []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "Makefile"))
	require.NoError(t, err)
	for _, m := range regexp.MustCompile(`(?m)^([a-z][a-z-]*):`).FindAllStringSubmatch(string(text), -1) {
		names = append(names, m[1])
	}
	return names
}

// commands are the programs that a reader can be expected to have, besides those of the
// repository.
var commands = strings.Fields(`
	apt-get benchstat cat cd cp curl docker env export fi_info getcap git go grep ibv_devinfo ip journalctl kubectl ls
	make mkdir mount numactl perf podman ps rdma rm sed setcap ss sudo sysctl systemctl taskset tcpdump ulimit`)

// TestCommands: the commands that readers are told to run exist.
func TestCommands(t *testing.T) {
	targets := makeTargets(t)
	require.Contains(t, targets, "demo")
	for _, d := range documents(t) {
		code := codeSpan.FindAllString(d.text, -1)
		for i := range code {
			code[i] = strings.Trim(code[i], "`")
		}
		for _, b := range d.blocks {
			if b.language == "sh" {
				code = append(code, b.code)
				checkCommands(t, d.path, b)
			}
		}
		for _, m := range makeTarget.FindAllStringSubmatch(strings.Join(code, "\n"), -1) {
			assert.Contains(t, targets, m[1], "%s: make %s", d.path, m[1])
		}
		for _, m := range goPath.FindAllStringSubmatch(strings.Join(code, "\n"), -1) {
			assert.DirExists(t, filepath.Join(root, m[1]), "%s: %s", d.path, m[0])
		}
	}
}

var (
	goPath     = regexp.MustCompile(`go (?:run|build|test|vet)\b[^\n;&|]*? (\./[a-z0-9/_-]+)`)
	assignment = regexp.MustCompile(`^[A-Za-z_]+=('[^']*'|\S*)\s+`)
)

// checkCommands looks at the first word of each line after any assignments of variables.
func checkCommands(t *testing.T, path string, b block) {
	t.Helper()
	for line := range strings.Lines(strings.ReplaceAll(b.code, "\\\n", " ")) {
		line, _, _ = strings.Cut(line, "#")
		for assignment.MatchString(line) {
			line = assignment.ReplaceAllString(line, "")
		}
		words := strings.Fields(line)
		switch {
		case len(words) == 0:
		case strings.HasPrefix(words[0], "./"):
			assert.FileExists(t, filepath.Join(root, words[0]), "%s, block in line %d", path, b.line)
		default:
			assert.Truef(t, slices.Contains(commands, words[0]), "%s, block in line %d: what is %q?", path, b.line, words[0])
		}
	}
}
