package report

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/seed202c38ff/fabricnet/bench/internal/workload"
)

// A Verdict is a target with what was measured.
type Verdict struct {
	Target   string  `json:"target"`
	Measured float64 `json:"measured"`
	// A ratio's least and largest value over the rounds, each of which has measured both sides of
	// it, and its value against the other's best round. All are 0 for what is no ratio.
	Least   float64 `json:"least,omitempty"`
	Most    float64 `json:"most,omitempty"`
	ToBest  float64 `json:"to_best,omitempty"`
	Must    string  `json:"must"`
	Goal    string  `json:"goal"`
	Verdict string  `json:"verdict"` // one of the constants below
	Unit    string  `json:"unit"`    // of all three figures
}

const (
	verdictGoal        = "goal met"
	verdictMet         = "met"
	verdictMissed      = "MISSED"
	verdictGoalMissed  = "goal missed"  // and there is nothing that it must reach
	verdictNotMeasured = "not measured" // a row is absent or has failed
)

// Judge compares the results with the targets.
func Judge(targets []Target, results []Result) []Verdict {
	rows := make(map[workload.Case]Result)
	for _, r := range results {
		if r.Error == "" && r.NotPossible == "" {
			rows[r.Case] = r
		}
	}
	verdicts := make([]Verdict, len(targets))
	for i, t := range targets {
		verdicts[i] = t.judge(rows)
	}
	return verdicts
}

func (t Target) judge(rows map[workload.Case]Result) Verdict {
	v := Verdict{Target: t.what, Must: t.bound(t.must), Goal: t.bound(t.goal), Verdict: verdictNotMeasured, Unit: t.unit()}
	measured, ok := t.measure(rows)
	if !ok {
		return v
	}
	v.Measured = measured
	v.Least, v.Most, v.ToBest = t.overRounds(rows)
	switch {
	case t.goal != 0 && t.meets(measured, t.goal):
		v.Verdict = verdictGoal
	case t.must == 0:
		v.Verdict = verdictGoalMissed
	case t.meets(measured, t.must):
		v.Verdict = verdictMet
	default:
		v.Verdict = verdictMissed
	}
	return v
}

// Enforce turns missed targets into an error.
func Enforce(verdicts []Verdict) error {
	var errs []error
	for _, v := range verdicts {
		if v.Verdict == verdictMissed || v.Verdict == verdictNotMeasured {
			errs = append(errs, fmt.Errorf("%s: %s (%s%s, must be %s)", v.Verdict, v.Target, digits(v.Measured), v.Unit, v.Must))
		}
	}
	return errors.Join(errs...)
}

// overRounds returns the range of a ratio over the rounds, and the ratio to the other's best round.
func (t Target) overRounds(rows map[workload.Case]Result) (least, most, toBest float64) {
	row := rows[t.row]
	var ratios []float64
	switch {
	case t.alone:
		ratios = row.ratiosToAlone(t.figure)
	case t.compares():
		ratios, toBest = row.ratiosTo(rows[t.than], t.figure, t.otherFigure())
	}
	if len(ratios) == 0 {
		return 0, 0, 0
	}
	return slices.Min(ratios), slices.Max(ratios), toBest
}

// otherFigure returns the figure of the row to compare with.
func (t Target) otherFigure() figure {
	if t.other.of != nil {
		return t.other
	}
	return t.figure
}

// measure returns t's figure, and false if the rows do not have it.
func (t Target) measure(rows map[workload.Case]Result) (float64, bool) {
	r, ok := rows[t.row]
	if t.alone {
		v := r.toAlone(t.figure)
		return v, v != 0
	}
	if !ok || !t.compares() {
		return t.figure.of(r), ok
	}
	base := t.otherFigure().of(rows[t.than]) // 0 without that row
	return ratio(t.figure.of(r), base), base != 0
}

func (t Target) compares() bool { return t.than != workload.Case{} }

func (t Target) meets(measured, bound float64) bool {
	if t.figure.higher {
		return measured >= bound
	}
	return measured <= bound
}

func (t Target) unit() string {
	if t.compares() || t.alone {
		return "x"
	}
	return t.figure.unit
}

func (t Target) bound(v float64) string {
	switch {
	case v == 0:
		return "-"
	case t.figure.higher:
		return fmt.Sprintf(">= %g%s", v, t.unit())
	}
	return fmt.Sprintf("<= %g%s", v, t.unit())
}

// TargetCases lists the rows that the targets need, as far as there are providers for them. The
// transports of one work follow each other.
func TargetCases(targets []Target, providers []string) []workload.Case {
	var works []workload.Case
	of := make(map[workload.Case][]workload.Case)
	for _, t := range targets {
		for _, c := range []workload.Case{t.than, t.row} {
			if c == (workload.Case{}) || c.Provider != "" && !slices.Contains(providers, c.Provider) {
				continue
			}
			w := c.Work()
			if of[w] == nil {
				works = append(works, w)
			}
			if !slices.Contains(of[w], c) {
				of[w] = append(of[w], c)
			}
		}
	}
	for w, cases := range of {
		if unix := w.Over(workload.Unix); slices.Contains(cases, w.Over(workload.TCP)) && slices.Contains(cases, w.Over(workload.Shm)) && !slices.Contains(cases, unix) {
			of[w] = append(cases, unix)
		}
	}
	order := []string{workload.TransportTCP, workload.TransportUnix, workload.TransportRsockets, workload.TransportRDMA}
	var all []workload.Case
	for _, w := range works {
		slices.SortStableFunc(of[w], func(a, b workload.Case) int {
			return slices.Index(order, a.Transport) - slices.Index(order, b.Transport)
		})
		all = append(all, of[w]...)
	}
	return all
}

func writeVerdicts(w io.Writer, verdicts []Verdict) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "target\tmeasured\trounds\tto best\tmust\tgoal\tverdict")
	for _, v := range verdicts {
		fmt.Fprintln(t, strings.Join([]string{v.Target, v.figure(), rangeText(v.Least, v.Most), toBestText(v.ToBest), v.Must, v.Goal, v.Verdict}, "\t"))
	}
	return t.Flush()
}

// figure returns what was measured, with its unit.
func (v Verdict) figure() string {
	if v.Verdict == verdictNotMeasured {
		return "-"
	}
	return digits(v.Measured) + v.Unit
}
