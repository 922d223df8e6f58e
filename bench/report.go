package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// sample is what one round of one cell has measured.
type sample struct {
	Ops      uint64
	Elapsed  time.Duration
	P50, P99 time.Duration
	CPU      time.Duration // of both processes
}

// result is a cell with the medians of its rounds. One failed round fails the
// cell: Error says why, and the figures are 0.
type result struct {
	cell
	P50us     float64 `json:"p50_us"` // of one operation; for bw of one Write
	P99us     float64 `json:"p99_us"` // likewise
	OpsPerS   float64 `json:"ops_per_s"`
	GBPerS    float64 `json:"gb_per_s"`      // 1e9 bytes of payload, one way
	CPUusPer  float64 `json:"cpu_us_per_op"` // both processes
	CPUsPerGB float64 `json:"cpu_s_per_gb"`  // both processes
	Rounds    int     `json:"rounds"`
	Error     string  `json:"error,omitempty"`
}

// summarize takes the median of each figure over the rounds.
func summarize(c cell, rounds []sample) result {
	over := func(figure func(sample) float64) float64 {
		values := make([]float64, len(rounds))
		for i, s := range rounds {
			values[i] = figure(s)
		}
		return median(values)
	}
	micros := func(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
	bytes := func(s sample) float64 { return float64(s.Ops) * float64(c.Size) }
	return result{
		cell:      c,
		P50us:     over(func(s sample) float64 { return micros(s.P50) }),
		P99us:     over(func(s sample) float64 { return micros(s.P99) }),
		OpsPerS:   over(func(s sample) float64 { return ratio(float64(s.Ops), s.Elapsed.Seconds()) }),
		GBPerS:    over(func(s sample) float64 { return ratio(bytes(s)/1e9, s.Elapsed.Seconds()) }),
		CPUusPer:  over(func(s sample) float64 { return ratio(micros(s.CPU), float64(s.Ops)) }),
		CPUsPerGB: over(func(s sample) float64 { return ratio(s.CPU.Seconds(), bytes(s)/1e9) }),
		Rounds:    len(rounds),
	}
}

// median returns the middle value, the mean of the two middle ones if there
// are two, and 0 of nothing. It sorts values.
func median(values []float64) float64 {
	n := len(values)
	if n == 0 {
		return 0
	}
	slices.Sort(values)
	return (values[(n-1)/2] + values[n/2]) / 2
}

func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

func writeJSON(w io.Writer, results []result) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(results)
}

const legend = `
Medians over the rounds. The last three columns compare with TCP on the same work:
time is the p50 (below 1x is faster than TCP; for bw that of one Write), rate is
operations and bytes a second (above 1x is faster), cpu is CPU time per operation
in both processes (below 1x is cheaper). A conn is a dial, the echo of a byte and
a close: tcp shakes hands for each, rdma-noreuse meets the listener over TCP for
each, and rdma does so once and opens all further conns over the fabric.
`

// columns is the number of them in the table.
const columns = 10

// writeTable prints a row for every result, in their order, failed ones too.
func writeTable(w io.Writer, results []result) error {
	tcp := make(map[cell]result)
	for _, r := range results {
		if r.Transport == transportTCP && r.Error == "" {
			tcp[r.work()] = r
		}
	}
	var text strings.Builder
	t := tabwriter.NewWriter(&text, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "work\ttransport\tp50 us\tp99 us\tops/s\tGB/s\tcpu us/op\ttime\trate\tcpu\t")
	var last cell
	for i, r := range results {
		if i > 0 && r.work() != last {
			fmt.Fprintln(t, strings.Repeat("\t", columns))
		}
		last = r.work()
		fmt.Fprintln(t, row(r, tcp[r.work()]))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for line := range strings.Lines(text.String()) {
		fmt.Fprintln(w, strings.TrimRight(line, " \n"))
	}
	for _, r := range results {
		if r.Error != "" {
			fmt.Fprintf(w, "\nFAILED %v:\n  %s\n", r.cell, strings.ReplaceAll(r.Error, "\n", "\n  "))
		}
	}
	_, err := fmt.Fprint(w, legend)
	return err
}

func row(r, tcp result) string {
	cells := []string{workText(r.cell), r.label()}
	if r.Error != "" {
		return strings.Join(append(cells, "failed"), "\t") + strings.Repeat("\t-", columns-3) + "\t"
	}
	for _, v := range []float64{r.P50us, r.P99us, r.OpsPerS, r.GBPerS, r.CPUusPer} {
		cells = append(cells, digits(v))
	}
	for _, pair := range [][2]float64{{r.P50us, tcp.P50us}, {r.OpsPerS, tcp.OpsPerS}, {r.CPUusPer, tcp.CPUusPer}} {
		cells = append(cells, times(pair[0], pair[1]))
	}
	return strings.Join(cells, "\t") + "\t"
}

// workText names a row's work: "rpc 64", "rpc 64 x64" for 64 calls in flight.
func workText(c cell) string {
	text := c.Mode
	if c.Mode != modeConn {
		text += " " + sizeText(c.Size)
	}
	if c.Inflight > 1 {
		text += " x" + strconv.Itoa(c.Inflight)
	}
	if c.Conns > 1 {
		text += fmt.Sprintf(" on %d conns", c.Conns)
	}
	return text
}

// digits prints v with about three of them.
func digits(v float64) string {
	switch {
	case v >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	case v >= 0.1:
		return strconv.FormatFloat(v, 'f', 2, 64)
	}
	return strconv.FormatFloat(v, 'g', 2, 64)
}

// times prints v as a multiple of base, "-" where there is nothing to compare.
func times(v, base float64) string {
	if base == 0 {
		return "-"
	}
	return strconv.FormatFloat(v/base, 'f', 2, 64) + "x"
}
