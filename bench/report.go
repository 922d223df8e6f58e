package main

import (
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
	Fairness float64 // Jain's index over the conns' shares

	Client, Server usage
}

func (s sample) cpu() time.Duration { return s.Client.CPU + s.Server.CPU }

func (s sample) mallocs() uint64 { return s.Client.Mallocs + s.Server.Mallocs }

// result is a cell with the medians of its rounds. One failed round fails the
// cell: Error says why, and the figures are 0.
type result struct {
	cell
	P50us     float64 `json:"p50_us"`      // of one operation; for bw of one Write
	P50Best   float64 `json:"p50_best_us"` // the least of the rounds' p50s
	P99us     float64 `json:"p99_us"`      // like p50_us
	OpsPerS   float64 `json:"ops_per_s"`
	GBPerS    float64 `json:"gb_per_s"`      // 1e9 bytes of payload, one way
	CPUusPer  float64 `json:"cpu_us_per_op"` // both processes
	CPUsPerGB float64 `json:"cpu_s_per_gb"`  // both processes
	Mallocs   float64 `json:"allocs_per_op"` // of Go memory, both processes
	// Fairness is Jain's index over what the conns have moved, 1 at best: for
	// bw and zc on several conns.
	Fairness float64 `json:"fairness,omitempty"`
	// For idle: the CPU time of the process that used more of it, in percent of
	// one core, and bytes for each conn after the first, in the process that
	// has more of them.
	CPUPercent float64 `json:"cpu_percent,omitempty"`
	Registered float64 `json:"registered_per_conn,omitempty"`
	Resident   float64 `json:"resident_per_conn,omitempty"`
	Rounds     int     `json:"rounds"`
	Error      string  `json:"error,omitempty"`
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
	r := result{
		cell:      c,
		P50us:     over(func(s sample) float64 { return micros(s.P50) }),
		P99us:     over(func(s sample) float64 { return micros(s.P99) }),
		OpsPerS:   over(func(s sample) float64 { return ratio(float64(s.Ops), s.Elapsed.Seconds()) }),
		GBPerS:    over(func(s sample) float64 { return ratio(bytes(s)/1e9, s.Elapsed.Seconds()) }),
		CPUusPer:  over(func(s sample) float64 { return ratio(micros(s.cpu()), float64(s.Ops)) }),
		CPUsPerGB: over(func(s sample) float64 { return ratio(s.cpu().Seconds(), bytes(s)/1e9) }),
		Mallocs:   over(func(s sample) float64 { return ratio(float64(s.mallocs()), float64(s.Ops)) }),
		Rounds:    len(rounds),
	}
	for i, s := range rounds {
		if p50 := micros(s.P50); i == 0 || p50 < r.P50Best {
			r.P50Best = p50
		}
	}
	switch {
	case c.Mode == modeIdle:
		more := func(c, s int64) float64 { return float64(max(c, s)) }
		added := float64(c.Conns - 1)
		r.CPUPercent = over(func(s sample) float64 {
			return 100 * ratio(more(int64(s.Client.CPU), int64(s.Server.CPU)), float64(s.Elapsed))
		})
		r.Registered = over(func(s sample) float64 { return ratio(more(s.Client.Registered, s.Server.Registered), added) })
		r.Resident = over(func(s sample) float64 { return ratio(more(s.Client.Resident, s.Server.Resident), added) })
	case c.Conns > 1 && (c.Mode == modeBW || c.Mode == modeZC):
		r.Fairness = over(func(s sample) float64 { return s.Fairness })
	}
	return r
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

const legend = `
Medians over the rounds. Three columns compare with TCP on the same work: time is
the p50 (below 1x is faster than TCP; for bw and zc that of one write), rate is
operations and bytes a second (above 1x is faster), cpu is CPU time per operation
in both processes (below 1x is cheaper). A conn is a dial, the echo of a byte and
a close: tcp shakes hands for each, rdma-noreuse meets the listener over TCP for
each, and rdma does so once and opens all further conns over the fabric. zc is a
stream whose every 4K are stamped and verified; rdma moves it by the zero-copy
calls. Fairness is Jain's index over the conns' bytes. Idle conns have each echoed
a byte; the figures are of the process that uses more. rsockets is rstream, whose
figures are means and whose two sides take turns.
`

// columns is the number of them in the table, without the notes at the end.
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
	if r.Mode == modeIdle {
		return strings.Join(cells, "\t") + strings.Repeat("\t-", columns-2) + "\t" + notes(r)
	}
	for _, v := range []float64{r.P50us, r.P99us, r.OpsPerS, r.GBPerS, r.CPUusPer} {
		cells = append(cells, digits(v))
	}
	for _, pair := range [][2]float64{{r.P50us, tcp.P50us}, {r.OpsPerS, tcp.OpsPerS}, {r.CPUusPer, tcp.CPUusPer}} {
		cells = append(cells, times(pair[0], pair[1]))
	}
	return strings.Join(cells, "\t") + "\t" + notes(r)
}

// notes are the figures that only some rows have.
func notes(r result) string {
	switch {
	case r.Mode == modeIdle:
		return fmt.Sprintf("  %s%% of a core; a conn has %s KiB registered, %s KiB resident",
			digits(r.CPUPercent), digits(r.Registered/1024), digits(r.Resident/1024))
	case r.Fairness > 0:
		return "  fairness " + strconv.FormatFloat(r.Fairness, 'f', 3, 64)
	}
	return ""
}

// workText names a row's work: "rpc 64", "rpc 64 x64" for 64 calls in flight.
func workText(c cell) string {
	text := c.Mode
	if c.Mode != modeConn && c.Mode != modeIdle {
		text += " " + sizeText(c.Size)
	}
	if c.Inflight > 1 {
		text += " x" + strconv.Itoa(c.Inflight)
	}
	if c.Conns > 1 {
		text += fmt.Sprintf(" on %d conns", c.Conns)
	}
	if c.OneCore {
		text += " on 1 core"
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
	if v /= base; v >= 100 {
		return digits(v) + "x"
	}
	return strconv.FormatFloat(v, 'f', 2, 64) + "x"
}
