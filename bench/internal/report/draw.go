package report

import (
	"image/color"
	"math"
	"slices"
	"strconv"

	xfont "golang.org/x/image/font"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/seed202c38ff/fabricnet/bench/internal/workload"
)

// Lengths in a drawing. It is narrow, so that its text can still be read on the screen of a phone.
const (
	drawWidth   = 420
	legendWidth = drawWidth - 16
	lineHeight  = 300 // of a chart with lines, without title and legend
	laneHeight  = 13  // of a dot
	rowGap      = 7
	titleSpace  = 26
	keySpace    = 17 // a line of the legend
	labelSpace  = 17 // the label of an axis
	axisSpace   = 34 // the x axis with its label
)

// foreground is black, which writeSVG replaces by the page's text colour.
var foreground = faint(255)

func faint(alpha uint8) color.NRGBA { return color.NRGBA{A: alpha} }

// polygon is a filled shape. Its corners are in multiples of its radius.
type polygon []vg.Point

var (
	diamond = polygon{{X: 0, Y: 1.25}, {X: 1.25, Y: 0}, {X: 0, Y: -1.25}, {X: -1.25, Y: 0}}
	pointed = polygon{{X: -1.15, Y: 0.9}, {X: 1.15, Y: 0.9}, {X: 0, Y: -1.15}}
)

// DrawGlyph implements draw.GlyphDrawer.
func (p polygon) DrawGlyph(to *draw.Canvas, s draw.GlyphStyle, at vg.Point) {
	corners := make([]vg.Point, len(p))
	for i, corner := range p {
		corners[i] = at.Add(corner.Scale(s.Radius))
	}
	to.FillPolygon(s.Color, corners)
}

// A look tells a transport from others, even without colours.
type look struct {
	color color.NRGBA
	shape draw.GlyphDrawer
}

// looks are for transports that are often compared. The colours work on white and on black.
var looks = map[string]look{
	workload.TCP.Label():      {color.NRGBA{128, 134, 142, 255}, draw.BoxGlyph{}},
	workload.Unix.Label():     {color.NRGBA{201, 122, 16, 255}, draw.PyramidGlyph{}},
	workload.Shm.Label():      {color.NRGBA{46, 130, 230, 255}, draw.CircleGlyph{}},
	workload.TCPRxm.Label():   {color.NRGBA{176, 88, 200, 255}, diamond},
	workload.Net.Label():      {color.NRGBA{38, 155, 92, 255}, pointed},
	workload.Verbs.Label():    {color.NRGBA{220, 66, 66, 255}, diamond},
	workload.Rsockets.Label(): {color.NRGBA{150, 110, 70, 255}, pointed},
}

// otherLooks are for all other transports, in turn.
var otherLooks = []look{
	{color.NRGBA{15, 151, 163, 255}, pointed},
	{color.NRGBA{214, 88, 140, 255}, draw.PyramidGlyph{}},
	{color.NRGBA{130, 148, 20, 255}, diamond},
	{color.NRGBA{110, 110, 220, 255}, draw.CircleGlyph{}},
}

// key lists the transports of a chart with their looks, in the order in which
// they first appear.
type key struct {
	labels []string
	looks  map[string]look
}

func (c chart) key() key {
	k := key{looks: make(map[string]look)}
	others := 0
	add := func(label string) {
		if slices.Contains(k.labels, label) {
			return
		}
		k.labels = append(k.labels, label)
		l, ok := looks[label]
		if !ok {
			l = otherLooks[others%len(otherLooks)]
			others++
		}
		k.looks[label] = l
	}
	for _, d := range c.dots {
		add(d.label)
	}
	for _, l := range c.lines {
		add(l.label)
	}
	return k
}

// height returns the height of the drawing.
func (c chart) height(legendLines int) vg.Length {
	h := vg.Length(titleSpace + keySpace*legendLines + axisSpace)
	if len(c.rows) > 0 {
		return h + c.lanes().height()
	}
	return h + labelSpace + lineHeight
}

// draw draws the chart below its title and legend. It labels the axes itself, and puts the label of
// the y axis above that axis, where it can be read.
func (c chart) draw(to draw.Canvas, k key, legend [][]string) {
	title := style(13)
	title.Font.Weight = xfont.WeightBold
	title.YAlign = draw.YTop
	to.FillText(title, vg.Point{X: to.Min.X + 4, Y: to.Max.Y - 4}, c.title)
	y := to.Max.Y - titleSpace
	for _, labels := range legend {
		k.drawLine(to, labels, y-keySpace/2)
		y -= keySpace
	}
	label := style(textSize)
	if c.y != "" {
		label.YAlign = draw.YCenter
		to.FillText(label, vg.Point{X: to.Min.X + 4, Y: y - labelSpace/2}, c.y)
		y -= labelSpace
	}
	label.XAlign, label.YAlign = draw.XRight, draw.YBottom
	to.FillText(label, vg.Point{X: to.Max.X - 10, Y: to.Min.Y + 3}, c.x)
	c.plot(k).Draw(draw.Crop(to, 4, -10, labelSpace, y-to.Max.Y))
}

// style is for text in the page's colour.
func style(size vg.Length) text.Style {
	return text.Style{
		Color:   foreground,
		Font:    font.Font{Typeface: "Liberation", Variant: "Sans", Size: size},
		Handler: plot.DefaultTextHandler,
	}
}

const textSize = 10.5

func keyWidth(label string) vg.Length {
	s := style(textSize)
	return 14 + s.Width(label) + 14
}

// wrap spreads the legend over as many lines as it needs.
func (k key) wrap(width vg.Length) (lines [][]string) {
	var used vg.Length
	for _, label := range k.labels {
		w := keyWidth(label)
		if len(lines) == 0 || used+w > width {
			lines, used = append(lines, nil), 0
		}
		lines[len(lines)-1] = append(lines[len(lines)-1], label)
		used += w
	}
	return lines
}

func (k key) drawLine(to draw.Canvas, labels []string, y vg.Length) {
	x := to.Min.X + 8
	for _, label := range labels {
		to.DrawGlyph(k.glyph(label), vg.Point{X: x, Y: y})
		s := style(textSize)
		s.YAlign = draw.YCenter
		to.FillText(s, vg.Point{X: x + 8, Y: y + 1}, label)
		x += keyWidth(label)
	}
}

func (k key) glyph(label string) draw.GlyphStyle {
	return draw.GlyphStyle{Color: k.looks[label].color, Radius: 3.6, Shape: k.looks[label].shape}
}

// plot returns a plot with the chart's axes and data.
func (c chart) plot(k key) *plot.Plot {
	p := plot.New()
	p.BackgroundColor = nil
	for _, a := range []*plot.Axis{&p.X, &p.Y} {
		a.Padding, a.Width = 0, 0
		a.Tick.Color, a.Tick.Length = faint(90), 4
		a.Tick.Label.Font, a.Tick.Label.Color = style(textSize).Font, foreground
		a.Scale = plot.LogScale{}
	}
	if len(c.rows) > 0 {
		c.addDots(p, k)
	} else {
		c.addLines(p, k)
	}
	return p
}

// logRange gives an axis ticks, and the room that the values need, with a margin.
func logRange(a *plot.Axis, values []float64, name func(float64) string) {
	low, high := slices.Min(values), slices.Max(values)
	margin := max(math.Pow(high/low, 0.04), 1.15)
	a.Min, a.Max = low/margin, high*margin
	a.Tick.Marker = plot.ConstantTicks(logTicks(a.Min, a.Max, name))
}

// logTicks returns powers of ten, and, while these are few, twice and five times them. Over more
// than ten decades, which only broken data spans, they thin out.
func logTicks(low, high float64, name func(float64) string) (ticks []plot.Tick) {
	first, last := int(math.Floor(math.Log10(low))), int(math.Ceil(math.Log10(high)))
	step := 1 + (last-first)/10
	for e := first; e <= last; e += step {
		for _, m := range []float64{1, 2, 5} {
			v := m * math.Pow10(e)
			if v < low || v > high {
				continue
			}
			t := plot.Tick{Value: v}
			if m == 1 || last-first <= 3 {
				t.Label = name(v)
			}
			ticks = append(ticks, t)
		}
	}
	return ticks
}

func plainNumber(v float64) string {
	if v >= 1e6 || v < 1e-4 {
		return strconv.FormatFloat(v, 'g', 3, 64)
	}
	return strconv.FormatFloat(v, 'f', -1, 64)
}

func multiple(v float64) string { return plainNumber(v) + "x" }

// addLines draws the chart's lines over the sizes or numbers that were measured.
func (c chart) addLines(p *plot.Plot, k key) {
	var xs, ys []float64
	for _, l := range c.lines {
		for _, pt := range l.points {
			xs, ys = append(xs, pt.x), append(ys, pt.y)
		}
	}
	name := plainNumber
	if c.times {
		ys, name = append(ys, 1), multiple
	}
	logRange(&p.Y, ys, name)
	logRange(&p.X, xs, plainNumber)
	p.X.Tick.Marker = plot.ConstantTicks(c.measuredAt(xs))
	p.Add(grid())
	if c.times {
		p.Add(tcpLine(false))
	}
	for _, l := range c.lines {
		points := make(plotter.XYs, len(l.points))
		for i, pt := range l.points {
			points[i] = plotter.XY{X: pt.x, Y: pt.y}
		}
		drawn := &plotter.Line{XYs: points, LineStyle: draw.LineStyle{Color: k.looks[l.label].color, Width: 1.6}}
		glyph := k.glyph(l.label)
		if l.dashed {
			drawn.Dashes = []vg.Length{4, 3}
			drawn.Width, glyph.Radius = 1, 2.4
		}
		p.Add(drawn, &plotter.Scatter{XYs: points, GlyphStyle: glyph})
	}
}

// measuredAt returns the ticks of an x axis: the values that occur.
func (c chart) measuredAt(xs []float64) (ticks []plot.Tick) {
	slices.Sort(xs)
	for _, x := range slices.Compact(xs) {
		label := plainNumber(x)
		if c.atSize {
			label = workload.SizeText(int(x))
		}
		ticks = append(ticks, plot.Tick{Value: x, Label: label})
	}
	return ticks
}

func grid() *plotter.Grid {
	s := draw.LineStyle{Color: faint(40), Width: 0.6}
	return &plotter.Grid{Vertical: s, Horizontal: s}
}
