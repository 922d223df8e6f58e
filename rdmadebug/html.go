package rdmadebug

import (
	"bytes"
	"crypto/sha256"
	_ "embed" // for the page
	"encoding/base64"
	"fmt"
	"html/template"
	"strconv"
	"strings"
)

//go:embed style.css
var style string

//go:embed page.html
var pageText string

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{
	"style": func() template.CSS { return template.CSS(style) }, //nolint:gosec // our own
	"size":  size,
	"count": count,
	"unit":  unit,
	"label": label,
}).Parse(pageText))

// policy lets the page load nothing but its own style sheet and data: images, and lets nobody
// frame it.
var policy = fmt.Sprintf("default-src 'none'; img-src data:; style-src 'sha256-%s'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'", digest(style))

func digest(s string) string {
	sum := sha256.Sum256([]byte(s))
	return base64.StdEncoding.EncodeToString(sum[:])
}

func writeHTML(b *bytes.Buffer, p *page) error { return pageTemplate.Execute(b, p.printable()) }

// unit returns a unit as people write it.
func unit(s string) string {
	if s == "By" {
		return "bytes"
	}
	return strings.Trim(s, "{}")
}

// size returns a number of bytes as people write it.
func size(n uint64) string {
	if n < 1<<10 {
		return strconv.FormatUint(n, 10)
	}
	v, i := float64(n)/(1<<10), 0
	for ; v >= 1<<10; i++ {
		v /= 1 << 10
	}
	return fmt.Sprintf("%.1f %ciB", v, "KMGTPE"[i])
}

// count returns a number with its thousands set apart.
func count(n uint64) string {
	s := strconv.FormatUint(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "\u202f" + s[i:]
	}
	return s
}
