package main

import (
	"cmp"
	"slices"
)

// A chart is what a plot of the report shows. Either it has rows, and every dot
// lies in one of them, or it has lines over sizes or conns.
type chart struct {
	name   string // of its file
	title  string
	says   string // how to read it, for a caption
	x, y   string // the axes, with their units
	rows   []string
	dots   []dot
	lines  []line
	atSize bool // x is in bytes
	times  bool // values are multiples of TCP's, which is a line at 1
}

// A dot is one figure of one row. A line leads from it to further figures, which are percentiles.
type dot struct {
	row   int
	label string // its transport
	value float64
	far   []float64 // ascending
}

// A line is one transport's figure over sizes or conns.
type line struct {
	label  string
	dashed bool
	points []point
}

type point struct{ x, y float64 }

// maxDots is how many dots a chart of all works can have and still be read. With more, each mode
// has a chart of its own.
const maxDots = 64

// charts returns charts of whatever there is to see in the results.
func charts(results []result) []chart {
	rows := slices.DeleteFunc(slices.Clone(results), func(r result) bool { return r.Error != "" || r.hasNoTimes() })
	var all []chart
	for _, overview := range []func([]result) chart{rateChart, latencyChart, cpuChart} {
		if c := overview(rows); len(c.dots) <= maxDots {
			all = append(all, c)
			continue
		}
		for _, mode := range modesOf(rows) {
			c := overview(slices.DeleteFunc(slices.Clone(rows), func(r result) bool { return r.Mode != mode }))
			c.name, c.title = c.name+"-by-"+slug(mode), c.title+": "+mode
			all = append(all, c)
		}
	}
	all = append(all, sizeCharts(rows)...)
	all = append(all, connCharts(rows)...)
	all = append(all, peerCharts(rows)...)
	return slices.DeleteFunc(all, func(c chart) bool { return len(c.dots) == 0 && len(c.lines) == 0 })
}

func modesOf(rows []result) (modes []string) {
	for _, r := range rows {
		if !slices.Contains(modes, r.Mode) {
			modes = append(modes, r.Mode)
		}
	}
	return modes
}

func rateChart(rows []result) chart {
	c := chart{
		name: "rate", title: "Rate compared with TCP", x: "operations a second, as a multiple of TCP's (log scale)", times: true,
		says: "Operations a second in multiples of TCP's on the same work. Right of the line is faster than TCP, left of it slower.",
	}
	tcp := tcpRows(rows)
	c.place(rows, func(r result) (float64, []float64) {
		if r.Transport == transportTCP {
			return 0, nil
		}
		return ratio(r.OpsPerS, tcp[r.work()].OpsPerS), nil
	})
	return c
}

func latencyChart(rows []result) chart {
	c := chart{
		name: "latency", title: "Latency: p50 to p99.9", x: "microseconds an operation (log scale)",
		says: "From the p50, the mark, to the p90, p99 and p99.9, the ticks, as far as they are known. Left is faster.",
	}
	c.place(rows, func(r result) (float64, []float64) {
		if r.Mode == modeBW || r.Mode == modeZC { // that of a Write says little
			return 0, nil
		}
		far := slices.DeleteFunc([]float64{r.P90us, r.P99us, r.P999us}, func(v float64) bool { return v < r.P50us || !drawable(v) })
		slices.Sort(far)
		return r.P50us, far
	})
	return c
}

func cpuChart(rows []result) chart {
	c := chart{
		name: "cpu", title: "CPU per operation", x: "microseconds of CPU time in both processes (log scale)",
		says: "CPU time of client and server together. Left is cheaper.",
	}
	c.place(rows, func(r result) (float64, []float64) { return r.CPUusPer, nil })
	return c
}

// tcpRows returns TCP's results by work.
func tcpRows(rows []result) map[cell]result {
	tcp := make(map[cell]result)
	for _, r := range rows {
		if r.Transport == transportTCP && r.Error == "" {
			tcp[r.work()] = r
		}
	}
	return tcp
}

// place adds a dot for every result that has the figure, and a row for each
// work that has a dot.
func (c *chart) place(rows []result, figure func(result) (float64, []float64)) {
	for _, r := range rows {
		value, far := figure(r)
		if !drawable(value) {
			continue
		}
		work := r.work().workText()
		if len(c.rows) == 0 || c.rows[len(c.rows)-1] != work {
			c.rows = append(c.rows, work)
		}
		c.dots = append(c.dots, dot{row: len(c.rows) - 1, label: r.label(), value: value, far: far})
	}
}

// drawable reports whether v can be drawn: a figure that is missing cannot, nor one that no
// measurement yields and no log scale has room for.
func drawable(v float64) bool { return v > 1e-15 && v < 1e15 }

// A sweep is a kind of work that was measured with several sizes, or on several numbers of conns or
// peers.
type sweep struct {
	like cell // without what varies
	rows []result
}

// sweeps groups the rows by key, and leaves out groups with only one x.
func sweeps(rows []result, key func(cell) cell, x func(result) int) (list []sweep) {
	for _, r := range rows {
		k := key(r.work())
		i := slices.IndexFunc(list, func(s sweep) bool { return s.like == k })
		if i < 0 {
			i = len(list)
			list = append(list, sweep{like: k})
		}
		list[i].rows = append(list[i].rows, r)
	}
	return slices.DeleteFunc(list, func(s sweep) bool {
		return !slices.ContainsFunc(s.rows, func(r result) bool { return x(r) != x(s.rows[0]) })
	})
}

func size(r result) int  { return r.Size }
func conns(r result) int { return r.Conns }
func peers(r result) int { return r.peers() }

// sizeCharts returns charts of latency or throughput, and of the ratio to TCP, by size.
func sizeCharts(rows []result) (all []chart) {
	for _, s := range sweeps(rows, func(c cell) cell { c.Size = 0; return c }, size) {
		what := sweepText(s.like)
		base := chart{x: "bytes an operation (log scale)", atSize: true}
		if s.like.Mode == modeLat || s.like.Mode == modeRPC {
			c := base
			c.name, c.title, c.y = "latency-"+slug(what), "Latency by size: "+what, "microseconds (log scale)"
			c.says = "The p50, solid, and the p99, dashed. Lower is faster."
			c.lines = append(s.lines(size, func(r result) float64 { return r.P50us }),
				dashed(s.lines(size, func(r result) float64 { return r.P99us }))...)
			all = append(all, c)
		}
		if s.like.Mode != modeLat {
			c := base
			c.name, c.title, c.y = "throughput-"+slug(what), "Throughput by size: "+what, "GB/s of payload, one way (log scale)"
			c.says = "Payload, 1e9 bytes to a GB. Higher is faster."
			c.lines = s.lines(size, func(r result) float64 { return r.GBPerS })
			all = append(all, c)
		}
		c := base
		c.name, c.title, c.y = "ratio-"+slug(what), "Compared with TCP by size: "+what, "rate, as a multiple of TCP's (log scale)"
		c.says = "Operations a second in multiples of TCP's. Above the line is faster than TCP, below it slower."
		c.times = true
		c.lines = s.ratios()
		all = append(all, c)
	}
	return all
}

// connCharts returns charts of what all conns together reach, by their number.
func connCharts(rows []result) (all []chart) {
	for _, s := range sweeps(rows, func(c cell) cell { c.Conns = 0; return c }, conns) {
		what := sweepText(s.like)
		c := chart{
			name: "conns-" + slug(what), title: "Scaling by conns: " + what, x: "conns at once (log scale)", y: "operations a second (log scale)",
			says:  "Operations a second of all conns together. Higher is faster.",
			lines: s.lines(conns, func(r result) float64 { return r.OpsPerS }),
		}
		if s.like.Mode == modeBW || s.like.Mode == modeZC {
			c.y, c.says = "GB/s, one way (log scale)", "Payload of all conns together, 1e9 bytes to a GB. Higher is faster."
			c.lines = s.lines(conns, func(r result) float64 { return r.GBPerS })
		}
		all = append(all, c)
	}
	return all
}

// peerCharts returns charts of what one peer reaches among idle ones, and of what all peers reach
// together, by how many there are.
func peerCharts(rows []result) (all []chart) {
	of := func(keep func(cell) bool) []sweep {
		kept := slices.DeleteFunc(slices.Clone(rows), func(r result) bool { return r.peers() == 0 || !keep(r.cell) })
		return sweeps(kept, func(c cell) cell { c.Idle, c.Busy = 0, 0; return c }, peers)
	}
	for _, s := range of(func(c cell) bool { return c.Busy == 1 }) {
		what := sweepText(s.like)
		c := chart{
			name: "idle-peers-" + slug(what), title: "One busy peer among idle ones: " + what, x: "peers (log scale)", y: "microseconds (log scale)",
			says:  "The p50 of the one that is busy. Lower is faster, and level is as good as alone.",
			lines: s.lines(peers, func(r result) float64 { return r.P50us }),
		}
		if s.like.Mode == modeBW {
			c.y, c.says = "GB/s, one way (log scale)", "Payload of the one that is busy. Higher is faster, and level is as good as alone."
			c.lines = s.lines(peers, func(r result) float64 { return r.GBPerS })
		}
		all = append(all, c)
	}
	for _, s := range of(func(c cell) bool { return c.Idle == 0 }) {
		what := sweepText(s.like)
		all = append(all, chart{
			name: "peers-" + slug(what), title: "All peers busy: " + what, x: "peers (log scale)", y: "operations a second (log scale)",
			says:  "Operations a second of all peers together. Higher is faster.",
			lines: s.lines(peers, func(r result) float64 { return r.OpsPerS }),
		})
	}
	return all
}

// lines returns one line for each transport.
func (s sweep) lines(x func(result) int, y func(result) float64) (lines []line) {
	for _, r := range s.rows {
		p := point{float64(x(r)), y(r)}
		if !drawable(p.x) || !drawable(p.y) {
			continue
		}
		i := slices.IndexFunc(lines, func(l line) bool { return l.label == r.label() })
		if i < 0 {
			i = len(lines)
			lines = append(lines, line{label: r.label()})
		}
		lines[i].points = append(lines[i].points, p)
	}
	for _, l := range lines {
		slices.SortStableFunc(l.points, func(a, b point) int { return cmp.Compare(a.x, b.x) })
	}
	return lines
}

func (s sweep) ratios() []line {
	tcp := tcpRows(s.rows)
	return s.lines(size, func(r result) float64 {
		if r.Transport == transportTCP {
			return 0
		}
		return ratio(r.OpsPerS, tcp[r.work()].OpsPerS)
	})
}

func dashed(lines []line) []line {
	for i := range lines {
		lines[i].dashed = true
	}
	return lines
}

// sweepText names what does not vary.
func sweepText(c cell) string {
	text := c.Mode
	if c.Size > 0 {
		text += " " + sizeText(c.Size)
	}
	return text + c.conditions()
}
