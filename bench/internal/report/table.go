package report

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/seed202c38ff/fabricnet/bench/internal/workload"
)

// columns is the number of columns in the table, without the notes at the end.
const columns = 12

// writeTable prints a row for every result, in their order, failed ones too.
func writeTable(w io.Writer, results []Result) error {
	tcp := tcpRows(results)
	var text strings.Builder
	t := tabwriter.NewWriter(&text, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "work\ttransport\tp50 us\tp99 us\tops/s\tGB/s\tcpu us/op\ttime\trate\tcpu\trounds\tto best\t")
	var last workload.Case
	for i, r := range results {
		if i > 0 && r.Work() != last {
			fmt.Fprintln(t, strings.Repeat("\t", columns))
		}
		last = r.Work()
		fmt.Fprintln(t, row(r, tcp[r.Work()]))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for line := range strings.Lines(text.String()) {
		fmt.Fprintln(w, strings.TrimRight(line, " \n"))
	}
	for _, r := range results {
		if r.Error != "" {
			fmt.Fprintf(w, "\nFAILED %v:\n  %s\n", r.Case, strings.ReplaceAll(r.Error, "\n", "\n  "))
		}
	}
	_, err := fmt.Fprintln(w, strings.Join(legend(results), "\n"))
	return err
}

func row(r, tcp Result) string {
	cells := []string{r.WorkText(), r.Label()}
	if r.Error != "" {
		return strings.Join(append(cells, "failed"), "\t") + strings.Repeat("\t-", columns-3) + "\t"
	}
	if r.hasNoTimes() {
		return strings.Join(cells, "\t") + strings.Repeat("\t-", columns-2) + "\t" + notes(r)
	}
	for _, v := range []float64{r.P50us, r.P99us, r.OpsPerS, r.GBPerS, r.CPUusPer} {
		cells = append(cells, digits(v))
	}
	for _, pair := range [][2]float64{{r.P50us, tcp.P50us}, {r.OpsPerS, tcp.OpsPerS}, {r.CPUusPer, tcp.CPUusPer}} {
		cells = append(cells, times(pair[0], pair[1]))
	}
	f := r.mainFigure()
	ratios, toBest := r.ratiosTo(tcp, f, f)
	if len(ratios) == 0 {
		return strings.Join(append(cells, "-", "-"), "\t") + "\t" + notes(r)
	}
	cells = append(cells, rangeText(slices.Min(ratios), slices.Max(ratios)), toBestText(toBest))
	return strings.Join(cells, "\t") + "\t" + notes(r)
}

// notes returns the figures that only some rows have.
func notes(r Result) string {
	switch {
	case r.NotPossible != "":
		return "  not possible: " + r.NotPossible
	case r.Mode == workload.ModeIdle && r.Idle > 0:
		return fmt.Sprintf("  %s%% of a core; a peer takes %s of the server, and %s of its own",
			digits(r.CPUPercent), memoryText(r.ServerUsed, r.ServerMapped, r.ServerResident), memoryText(r.ClientUsed, r.ClientMapped, r.ClientResident))
	case r.Mode == workload.ModeIdle:
		return fmt.Sprintf("  %s%% of a core; a conn has %s KiB registered, %s KiB resident",
			digits(r.CPUPercent), digits(r.Registered/1024), digits(r.Resident/1024))
	case r.IsAmong():
		return fmt.Sprintf("  to alone: time %s, rate %s", times(r.toAlone(p50), 1), times(r.toAlone(rate), 1))
	case r.ColdUs > 0:
		return fmt.Sprintf("  the client's very first %s ms", digits(r.ColdUs/1000))
	case r.Fairness > 0:
		return "  fairness " + strconv.FormatFloat(r.Fairness, 'f', 3, 64)
	}
	return ""
}

// hasNoTimes reports whether the figures of a row are not those of operations.
func (r Result) hasNoTimes() bool { return r.Mode == workload.ModeIdle || r.NotPossible != "" }

// memoryText prints MemoryStats' figures, in bytes, and what is resident. Sockets have only the
// latter.
func memoryText(used, mapped, resident float64) string {
	text := digits(resident/1024) + " KiB resident"
	if used != 0 || mapped != 0 {
		text = fmt.Sprintf("%s KiB used, %s mapped, %s", digits(used/1024), digits(mapped/1024), text)
	}
	return text
}

// mainFigure is the figure that a row is read for: how long an operation takes or, for streams, the
// rate.
func (r Result) mainFigure() figure {
	switch {
	case r.Mode == workload.ModeBW, r.Mode == workload.ModeZC, r.Size == workload.BodySize, r.Inflight > 1, r.Conns > 1, r.Busy > 1:
		return rate
	}
	return p50
}

// rangeText prints a ratio's range over the rounds, "-" if there is none.
func rangeText(least, most float64) string {
	if most == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f-%.2fx", least, most)
}

func toBestText(v float64) string {
	if v == 0 {
		return "-"
	}
	return times(v, 1)
}

// digits prints v with about three digits.
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
