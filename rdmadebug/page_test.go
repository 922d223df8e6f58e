package rdmadebug

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"
)

const nasty = "<script>alert(1)</script>\"'>\x1b[31m\x00&\u202ename`${x}`</style></table>\n"

// hostile is a page on which a peer has chosen every text that a peer can choose.
func hostile() *page {
	return &page{
		Time: time.Now(), NotShown: 3,
		Conns: []conn{{
			Phase: nasty, Local: nasty, Remote: nasty, Provider: nasty, Small: nasty, Large: nasty,
			Refused: []string{nasty, nasty}, WaitsFor: "window",
		}},
		Metrics: []sample{{Name: "fabricnet.fallbacks", Labels: map[string]string{"reason": nasty}, Unit: "{conn}", Help: "Help."}},
	}
}

func TestHostileHTML(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, writeHTML(&b, hostile()))
	assert.NotContains(t, b.String(), "ZgotmplZ", "what html/template could not make safe")
	allPrintable(t, b.String(), "\n\u202f") // ours, in numbers
	root, err := html.Parse(&b)
	require.NoError(t, err)
	rows, texts := 0, 0
	for _, n := range nodes(root) {
		switch {
		case n.Type == html.ElementNode:
			assert.NotContains(t, []string{"script", "img", "iframe", "object", "form"}, n.Data)
			for _, a := range n.Attr {
				assert.False(t, strings.HasPrefix(a.Key, "on"), "%s has %s", n.Data, a.Key)
			}
			if n.Data == "tr" {
				rows++
			}
		case n.Type == html.TextNode && strings.Contains(n.Data, "<script>alert(1)"):
			texts++
		}
	}
	assert.Equal(t, 4, rows, "two tables, each with a head and a row")
	assert.Equal(t, 7, texts, "they are there, as text")
}

// nodes returns n and all nodes below it. Node.Descendants is newer than the oldest
// golang.org/x/net that go.mod allows.
func nodes(n *html.Node) []*html.Node {
	all := []*html.Node{n}
	for child := n.FirstChild; child != nil; child = child.NextSibling {
		all = append(all, nodes(child)...)
	}
	return all
}

func TestHostileText(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, writeText(&b, hostile()))
	assert.Contains(t, b.String(), "<script>")
	allPrintable(t, b.String(), "\n")
}

func allPrintable(t *testing.T, text, except string) {
	t.Helper()
	for _, r := range text {
		assert.True(t, unicode.IsPrint(r) && r != unicode.ReplacementChar || strings.ContainsRune(except, r), "%q", r)
	}
}

func TestHostileJSON(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, writeJSON(&b, hostile()))
	assert.NotContains(t, b.String(), "<")
	allPrintable(t, b.String(), "\n")
	var p page
	require.NoError(t, json.Unmarshal(b.Bytes(), &p))
	assert.Equal(t, nasty, p.Conns[0].Refused[0])
}

// TestPolicy: the page's style sheet is the one that its policy allows.
func TestPolicy(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, writeHTML(&b, hostile()))
	sheet := regexp.MustCompile(`(?s)<style>(.*)</style>\n</head>`).FindStringSubmatch(b.String())
	require.NotNil(t, sheet)
	assert.Contains(t, policy, "'sha256-"+digest(sheet[1])+"'")
	assert.NotContains(t, policy, "unsafe")
}

func TestSizes(t *testing.T) {
	for n, want := range map[uint64]string{0: "0", 1023: "1023", 1024: "1.0 KiB", 1536: "1.5 KiB", 5 << 20: "5.0 MiB", 1 << 63: "8.0 EiB"} {
		assert.Equal(t, want, size(n))
	}
	for n, want := range map[uint64]string{0: "0", 999: "999", 1000: "1\u202f000", 1234567: "1\u202f234\u202f567"} {
		assert.Equal(t, want, count(n))
	}
}
