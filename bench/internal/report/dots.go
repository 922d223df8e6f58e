package report

import (
	"math"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// lanes places dots one below the other, so that none hides another. Lengths are measured from the
// top.
type lanes struct {
	dots []vg.Length // the middle of each dot's lane
	rows [][2]vg.Length
}

func (c chart) lanes() lanes {
	var l lanes
	var y vg.Length
	for i, d := range c.dots {
		if i == 0 || d.row != c.dots[i-1].row {
			l.rows = append(l.rows, [2]vg.Length{y, y + rowGap})
			y += rowGap
		}
		l.dots = append(l.dots, y+laneHeight/2-rowGap/2)
		y += laneHeight
		l.rows[d.row][1] = y
	}
	return l
}

func (l lanes) height() vg.Length { return l.rows[len(l.rows)-1][1] }

// addDots draws the chart's dots, in rows with their names at the left.
func (c chart) addDots(p *plot.Plot, k key) {
	values := []float64{}
	for _, d := range c.dots {
		values = append(append(values, d.value), d.far...)
	}
	name := plainNumber
	if c.times {
		values, name = append(values, 1), multiple
	}
	logRange(&p.X, values, name)
	room := 0.1 // for the text beside a dot
	if len(c.dots[0].far) > 0 {
		room = 0.24
	}
	room = math.Pow(p.X.Max/p.X.Min, room)
	p.X.Max *= room
	if slices.Min(values) < 1 && c.times {
		p.X.Min /= room
	}
	p.X.Tick.Marker = plot.ConstantTicks(logTicks(p.X.Min, p.X.Max, name))

	l := c.lanes()
	p.Y.Scale = plot.LinearScale{}
	p.Y.Min, p.Y.Max = -float64(l.height()), 0
	p.Y.Tick.Length = 0
	var names []plot.Tick
	for i, row := range c.rows {
		names = append(names, plot.Tick{Value: -float64(l.rows[i][0]+l.rows[i][1]) / 2, Label: row})
	}
	p.Y.Tick.Marker = plot.ConstantTicks(names)
	vertical := grid()
	vertical.Horizontal.Color = nil
	p.Add(bands(l), vertical)
	if c.times {
		p.Add(tcpLine(true))
	}
	p.Add(dotPlotter{c, l, k})
}

// bands shades every other row.
type bands lanes

func (b bands) Plot(to draw.Canvas, p *plot.Plot) {
	_, trY := p.Transforms(&to)
	for i, row := range b.rows {
		if i%2 == 1 {
			continue
		}
		top, bottom := trY(-float64(row[0])), trY(-float64(row[1]))
		to.FillPolygon(faint(14), []vg.Point{
			{X: to.Min.X, Y: top}, {X: to.Max.X, Y: top}, {X: to.Max.X, Y: bottom}, {X: to.Min.X, Y: bottom},
		})
	}
}

// tcpLine is where values equal TCP's. It is upright if the values lie along the x axis.
type tcpLine bool

func (upright tcpLine) Plot(to draw.Canvas, p *plot.Plot) {
	trX, trY := p.Transforms(&to)
	s := draw.LineStyle{Color: foreground, Width: 1.2}
	if upright {
		to.StrokeLine2(s, trX(1), to.Min.Y, trX(1), to.Max.Y)
		return
	}
	to.StrokeLine2(s, to.Min.X, trY(1), to.Max.X, trY(1))
}

// dotPlotter draws dots, how far they reach, and their values beside them.
type dotPlotter struct {
	chart chart
	lanes lanes
	key   key
}

func (dp dotPlotter) Plot(to draw.Canvas, p *plot.Plot) {
	trX, trY := p.Transforms(&to)
	for i, d := range dp.chart.dots {
		at := vg.Point{X: trX(d.value), Y: trY(-float64(dp.lanes.dots[i]))}
		s := draw.LineStyle{Color: dp.key.looks[d.label].color, Width: 1.2}
		end := at.X
		for _, v := range d.far {
			x := trX(v)
			to.StrokeLine2(s, end, at.Y, x, at.Y)
			to.StrokeLine2(s, x, at.Y-3, x, at.Y+3)
			end = x
		}
		to.DrawGlyph(dp.key.glyph(d.label), at)
		dp.write(to, at, end, d)
	}
}

// write puts what a dot stands for to its right, or to the left of what is less
// than TCP's, away from the line.
func (dp dotPlotter) write(to draw.Canvas, at vg.Point, end vg.Length, d dot) {
	s := style(9.5)
	s.YAlign = draw.YCenter
	text := digits(d.value)
	at.X, at.Y = end+7, at.Y+0.8
	switch {
	case dp.chart.times:
		text = times(d.value, 1)
		if d.value < 1 {
			s.XAlign = draw.XRight
			at.X = end - 7
		}
	case len(d.far) > 0:
		text += " to " + digits(d.far[len(d.far)-1])
	}
	to.FillText(s, at, text)
}
