package report

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"regexp"
	"strings"
	"unicode"

	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

var (
	svgStart = regexp.MustCompile(`(?s)^.*?<svg [^>]*viewBox="([^"]*)"[^>]*>`)
	svgFonts = regexp.MustCompile(`font-family:[^;"]*;font-variant:[^;"]*;font-weight:([^;"]*);font-style:[^;"]*;?`)
)

// A drawing in a file of its own needs a size, a background and colours. A page provides all of
// these for the drawings in it.
const (
	namespace = ` xmlns="http://www.w3.org/2000/svg"`
	themes    = `<style>svg{color:#1f2328;background:#fff}@media(prefers-color-scheme:dark){svg{color:#e6edf3;background:#0d1117}}</style>`
	scale     = 1.75 // to pixels
)

// svgFamily lists fonts with the widths that the texts were placed by.
const svgFamily = "Liberation Sans,Arial,Helvetica,sans-serif"

// svg draws the chart for a page: as wide as there is room, and in the page's text colour. Its text
// has the font and the look of what is around it.
func (c chart) svg() string { return c.writeSVG("", "") }

// fileWriter draws the chart for a file of its own, which says where the figures are from.
func (c chart) fileWriter(source string) func(io.Writer) error {
	k := c.key()
	height := c.height(len(k.wrap(legendWidth)))
	attributes := fmt.Sprintf(`%s width="%g" height="%g"`, namespace, scale*drawWidth, scale*height.Points())
	return func(w io.Writer) error {
		_, err := fmt.Fprintln(w, c.writeSVG(attributes, "<desc>"+escape(source)+"</desc>"+themes))
		return err
	}
}

func (c chart) writeSVG(attributes, children string) string {
	k := c.key()
	legend := k.wrap(legendWidth)
	canvas := vgsvg.New(drawWidth, c.height(len(legend)))
	c.draw(draw.New(canvas), k, legend)
	var b bytes.Buffer
	_, _ = canvas.WriteTo(&b) // a Buffer does not fail

	text := b.String()
	tag := svgStart.FindStringSubmatch(text)
	start := fmt.Sprintf(`<svg%s viewBox="%s" role="img" fill="currentColor" font-family="%s" aria-label="%s"><title>%s</title>%s`,
		attributes, tag[1], svgFamily, escape(c.title+". "+c.says), escape(c.title), children)
	text = svgFonts.ReplaceAllString(text[len(tag[0]):], "font-weight:$1;")
	text = start + strings.TrimSpace(strings.ReplaceAll(text, "stroke:#000000", "stroke:currentColor"))
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' { // XML has none
			return unicode.ReplacementChar
		}
		return r
	}, text)
}

func escape(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a Builder does not fail
	return b.String()
}
