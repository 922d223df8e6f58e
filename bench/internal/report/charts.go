package report

import (
	"cmp"
	"slices"

	"github.com/seed202c38ff/fabricnet/bench/internal/workload"
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
func charts(results []Result) []chart {
	rows := slices.DeleteFunc(slices.Clone(results), func(r Result) bool { return r.Error != "" || r.hasNoTimes() })
	var all []chart
	for _, overview := range []func([]Result) chart{rateChart, latencyChart, cpuChart} {
		if c := overview(rows); len(c.dots) <= maxDots {
			all = append(all, c)
			continue
		}
		for _, mode := range distinct(rows, func(r Result) string { return r.Mode }) {
			c := overview(slices.DeleteFunc(slices.Clone(rows), func(r Result) bool { return r.Mode != mode }))
			c.name, c.title = c.name+"-by-"+workload.Slug(mode), c.title+": "+mode
			all = append(all, c)
		}
	}
	all = append(all, sizeCharts(rows)...)
	all = append(all, connCharts(rows)...)
	all = append(all, peerCharts(rows)...)
	return slices.DeleteFunc(all, func(c chart) bool { return len(c.dots) == 0 && len(c.lines) == 0 })
}

// distinct returns what the results are called by name, without repetitions.
func distinct(results []Result, name func(Result) string) (names []string) {
	for _, r := range results {
		if n := name(r); !slices.Contains(names, n) {
			names = append(names, n)
		}
	}
	return names
}

func rateChart(rows []Result) chart {
	c := chart{
		name: "rate", title: "Rate compared with TCP", x: "operations a second, as a multiple of TCP's (log scale)", times: true,
		says: "Operations a second in multiples of TCP's on the same work. Right of the line is faster than TCP, left of it slower.",
	}
	tcp := tcpRows(rows)
	c.place(rows, func(r Result) (float64, []float64) {
		if r.Transport == workload.TransportTCP {
			return 0, nil
		}
		return ratio(r.OpsPerS, tcp[r.Work()].OpsPerS), nil
	})
	return c
}

func latencyChart(rows []Result) chart {
	c := chart{
		name: "latency", title: "Latency: p50 to p99.9", x: "microseconds an operation (log scale)",
		says: "From the p50, the mark, to the p90, p99 and p99.9, the ticks, as far as they are known. Left is faster.",
	}
	c.place(rows, func(r Result) (float64, []float64) {
		if r.Mode == workload.ModeBW || r.Mode == workload.ModeZC { // that of a Write says little
			return 0, nil
		}
		far := slices.DeleteFunc([]float64{r.P90us, r.P99us, r.P999us}, func(v float64) bool { return v < r.P50us || !drawable(v) })
		slices.Sort(far)
		return r.P50us, far
	})
	return c
}

func cpuChart(rows []Result) chart {
	c := chart{
		name: "cpu", title: "CPU per operation", x: "microseconds of CPU time in both processes (log scale)",
		says: "CPU time of client and server together. Left is cheaper.",
	}
	c.place(rows, func(r Result) (float64, []float64) { return r.CPUusPer, nil })
	return c
}

// tcpRows returns TCP's results by work.
func tcpRows(rows []Result) map[workload.Case]Result {
	tcp := make(map[workload.Case]Result)
	for _, r := range rows {
		if r.Transport == workload.TransportTCP && r.Error == "" {
			tcp[r.Work()] = r
		}
	}
	return tcp
}

// place adds a dot for every result that has the figure, and a row for each
// work that has a dot.
func (c *chart) place(rows []Result, figure func(Result) (float64, []float64)) {
	for _, r := range rows {
		value, far := figure(r)
		if !drawable(value) {
			continue
		}
		work := r.Work().WorkText()
		if len(c.rows) == 0 || c.rows[len(c.rows)-1] != work {
			c.rows = append(c.rows, work)
		}
		c.dots = append(c.dots, dot{row: len(c.rows) - 1, label: r.Label(), value: value, far: far})
	}
}

// drawable reports whether v can be drawn: a figure that is missing cannot, nor one that no
// measurement yields and no log scale has room for.
func drawable(v float64) bool { return v > 1e-15 && v < 1e15 }

// A sweep is a kind of work that was measured with several sizes, or on several numbers of conns or
// peers.
type sweep struct {
	like workload.Case // without what varies
	rows []Result
}

// sweeps groups the rows by key, and leaves out groups with only one x.
func sweeps(rows []Result, key func(workload.Case) workload.Case, x func(Result) int) (list []sweep) {
	for _, r := range rows {
		k := key(r.Work())
		i := slices.IndexFunc(list, func(s sweep) bool { return s.like == k })
		if i < 0 {
			i = len(list)
			list = append(list, sweep{like: k})
		}
		list[i].rows = append(list[i].rows, r)
	}
	return slices.DeleteFunc(list, func(s sweep) bool {
		return !slices.ContainsFunc(s.rows, func(r Result) bool { return x(r) != x(s.rows[0]) })
	})
}

func size(r Result) int  { return r.Size }
func conns(r Result) int { return r.Conns }
func peers(r Result) int { return r.Peers() }

// sizeCharts returns charts of latency or throughput, and of the ratio to TCP, by size.
func sizeCharts(rows []Result) (all []chart) {
	for _, s := range sweeps(rows, func(c workload.Case) workload.Case { c.Size = 0; return c }, size) {
		what := sweepText(s.like)
		base := chart{x: "bytes an operation (log scale)", atSize: true}
		if s.like.Mode == workload.ModeLat || s.like.Mode == workload.ModeRPC {
			c := base
			c.name, c.title, c.y = "latency-"+workload.Slug(what), "Latency by size: "+what, "microseconds (log scale)"
			c.says = "The p50, solid, and the p99, dashed. Lower is faster."
			c.lines = append(s.lines(size, func(r Result) float64 { return r.P50us }),
				dashed(s.lines(size, func(r Result) float64 { return r.P99us }))...)
			all = append(all, c)
		}
		if s.like.Mode != workload.ModeLat {
			c := base
			c.name, c.title, c.y = "throughput-"+workload.Slug(what), "Throughput by size: "+what, "GB/s of payload, one way (log scale)"
			c.says = "Payload, 1e9 bytes to a GB. Higher is faster."
			c.lines = s.lines(size, func(r Result) float64 { return r.GBPerS })
			all = append(all, c)
		}
		c := base
		c.name, c.title, c.y = "ratio-"+workload.Slug(what), "Compared with TCP by size: "+what, "rate, as a multiple of TCP's (log scale)"
		c.says = "Operations a second in multiples of TCP's. Above the line is faster than TCP, below it slower."
		c.times = true
		c.lines = s.ratios()
		all = append(all, c)
	}
	return all
}

// connCharts returns charts of what all conns together reach, by their number.
func connCharts(rows []Result) (all []chart) {
	for _, s := range sweeps(rows, func(c workload.Case) workload.Case { c.Conns = 0; return c }, conns) {
		what := sweepText(s.like)
		c := chart{
			name: "conns-" + workload.Slug(what), title: "Scaling by conns: " + what, x: "conns at once (log scale)", y: "operations a second (log scale)",
			says:  "Operations a second of all conns together. Higher is faster.",
			lines: s.lines(conns, func(r Result) float64 { return r.OpsPerS }),
		}
		if s.like.Mode == workload.ModeBW || s.like.Mode == workload.ModeZC {
			c.y, c.says = "GB/s, one way (log scale)", "Payload of all conns together, 1e9 bytes to a GB. Higher is faster."
			c.lines = s.lines(conns, func(r Result) float64 { return r.GBPerS })
		}
		all = append(all, c)
	}
	return all
}

// peerCharts returns charts of what one peer reaches among idle ones, and of what all peers reach
// together, by how many there are.
func peerCharts(rows []Result) (all []chart) {
	of := func(keep func(workload.Case) bool) []sweep {
		kept := slices.DeleteFunc(slices.Clone(rows), func(r Result) bool { return r.Peers() == 0 || !keep(r.Case) })
		return sweeps(kept, func(c workload.Case) workload.Case { c.Idle, c.Busy = 0, 0; return c }, peers)
	}
	for _, s := range of(func(c workload.Case) bool { return c.Busy == 1 }) {
		what := sweepText(s.like)
		c := chart{
			name: "idle-peers-" + workload.Slug(what), title: "One busy peer among idle ones: " + what, x: "peers (log scale)", y: "microseconds (log scale)",
			says:  "The p50 of the one that is busy. Lower is faster, and level is as good as alone.",
			lines: s.lines(peers, func(r Result) float64 { return r.P50us }),
		}
		if s.like.Mode == workload.ModeBW {
			c.y, c.says = "GB/s, one way (log scale)", "Payload of the one that is busy. Higher is faster, and level is as good as alone."
			c.lines = s.lines(peers, func(r Result) float64 { return r.GBPerS })
		}
		all = append(all, c)
	}
	for _, s := range of(func(c workload.Case) bool { return c.Idle == 0 }) {
		what := sweepText(s.like)
		all = append(all, chart{
			name: "peers-" + workload.Slug(what), title: "All peers busy: " + what, x: "peers (log scale)", y: "operations a second (log scale)",
			says:  "Operations a second of all peers together. Higher is faster.",
			lines: s.lines(peers, func(r Result) float64 { return r.OpsPerS }),
		})
	}
	return all
}

// lines returns one line for each transport.
func (s sweep) lines(x func(Result) int, y func(Result) float64) (lines []line) {
	for _, r := range s.rows {
		p := point{float64(x(r)), y(r)}
		if !drawable(p.x) || !drawable(p.y) {
			continue
		}
		i := slices.IndexFunc(lines, func(l line) bool { return l.label == r.Label() })
		if i < 0 {
			i = len(lines)
			lines = append(lines, line{label: r.Label()})
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
	return s.lines(size, func(r Result) float64 {
		if r.Transport == workload.TransportTCP {
			return 0
		}
		return ratio(r.OpsPerS, tcp[r.Work()].OpsPerS)
	})
}

func dashed(lines []line) []line {
	for i := range lines {
		lines[i].dashed = true
	}
	return lines
}

// sweepText names what does not vary.
func sweepText(c workload.Case) string {
	text := c.Mode
	if c.Size > 0 {
		text += " " + workload.SizeText(c.Size)
	}
	return text + c.Conditions()
}
