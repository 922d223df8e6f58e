package report

import (
	_ "embed"
	"errors"
	"fmt"
	"html/template"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/seed202c38ff/fabricnet/bench/internal/workload"
)

//go:embed page.html
var pageText string

var pageTemplate = template.Must(template.New("page").Parse(pageText))

// page is what page.html shows.
type page struct {
	Record
	When     string
	Notes    []string // the legend of the tables
	Charts   []pageChart
	Works    []pageWork
	Balance  []balance
	Missed   int // targets
	Enforced int // targets that bind
}

type pageChart struct {
	Name, Says string
	SVG        template.HTML
}

// pageWork is one work's rows in the table.
type pageWork struct {
	Text string
	Rows []pageRow
}

type pageRow struct {
	Label   string
	Error   string
	Figures []string
	Ratios  []pageRatio
	Notes   string
}

type pageRatio struct{ Text, Class string }

// How a figure compares with TCP's. It counts as level within a twentieth.
const (
	better = "better"
	level  = "level"
	worse  = "worse"
	near   = 0.05
)

// compare says how v compares with base. higher says whether higher is better.
func compare(v, base float64, higher bool) pageRatio {
	r := pageRatio{Text: times(v, base)}
	switch {
	case base == 0:
	case v > base*(1-near) && v < base*(1+near):
		r.Class = level
	case v > base == higher:
		r.Class = better
	default:
		r.Class = worse
	}
	return r
}

// balance counts how a transport's rows compare with TCP's by one figure, and
// names those that are worse.
type balance struct {
	Label, Figure        string
	Better, Level, Worse int
	Losses               string
}

func balances(results []Result) (list []balance) {
	tcp := tcpRows(results)
	figures := []struct {
		name   string
		figure figure
	}{{"rate", rate}, {"CPU", cpuPerOp}}
	for _, label := range distinct(results, Result.Label) {
		for _, f := range figures {
			b := balance{Label: label, Figure: f.name}
			var losses []string
			for _, r := range results {
				if r.Label() != label || r.Transport == workload.TransportTCP || r.Error != "" || r.NotPossible != "" {
					continue
				}
				c := compare(f.figure.of(r), f.figure.of(tcp[r.Work()]), f.figure.higher)
				switch c.Class {
				case better:
					b.Better++
				case level:
					b.Level++
				case worse:
					b.Worse++
					losses = append(losses, r.WorkText()+" ("+c.Text+")")
				}
			}
			if b.Losses = strings.Join(losses, ", "); b.Better+b.Level+b.Worse > 0 {
				list = append(list, b)
			}
		}
	}
	return list
}

func newPage(r Record, all []chart) page {
	p := page{Record: r, When: r.Date.Format("2 January 2006, 15:04 MST"), Notes: legend(r.Rows), Balance: balances(r.Rows)}
	for _, c := range all {
		// Everything in it that is not ours is escaped: see escape and vgsvg.
		p.Charts = append(p.Charts, pageChart{c.name, c.says, template.HTML(c.svg())})
	}
	tcp := tcpRows(r.Rows)
	for i, row := range r.Rows {
		if i == 0 || row.Work() != r.Rows[i-1].Work() {
			p.Works = append(p.Works, pageWork{Text: row.Work().WorkText()})
		}
		w := &p.Works[len(p.Works)-1]
		w.Rows = append(w.Rows, newPageRow(row, tcp[row.Work()]))
	}
	for _, v := range r.Verdicts {
		if v.Must != "-" {
			p.Enforced++
		}
		if v.Verdict == verdictMissed {
			p.Missed++
		}
	}
	return p
}

func newPageRow(r, tcp Result) pageRow {
	row := pageRow{Label: r.Label(), Error: r.Error, Notes: strings.TrimSpace(notes(r))}
	if r.Error != "" {
		return row
	}
	for _, v := range []float64{r.P50us, r.P90us, r.P99us, r.P999us, r.OpsPerS, r.GBPerS, r.CPUusPer, r.Mallocs} {
		text := digits(v)
		if v == 0 || r.hasNoTimes() {
			text = "-"
		}
		row.Figures = append(row.Figures, text)
	}
	if r.hasNoTimes() {
		tcp = Result{}
	}
	row.Ratios = []pageRatio{
		compare(r.P50us, tcp.P50us, false), compare(r.OpsPerS, tcp.OpsPerS, true), compare(r.CPUusPer, tcp.CPUusPer, false),
	}
	if r.Transport == workload.TransportTCP {
		for i := range row.Ratios {
			row.Ratios[i].Class = ""
		}
	}
	return row
}

// VerdictClass returns how the page shows a verdict.
func (p page) VerdictClass(v Verdict) string {
	switch v.Verdict {
	case verdictGoal, verdictMet:
		return better
	case verdictMissed:
		return worse
	}
	return level
}

// Figure returns what was measured.
func (p page) Figure(v Verdict) string { return v.figure() }

// HasPeers reports whether there are rows with peers.
func (p page) HasPeers() bool {
	return slices.ContainsFunc(p.Rows, func(r Result) bool { return r.Peers() > 0 })
}

func (p page) write(w io.Writer) error { return pageTemplate.Execute(w, p) }

// WriteReport writes the page, index.html, into a directory, and each of its
// charts as a file.
func WriteReport(dir string, r Record) error {
	if dir == "" {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	all := charts(r.Rows)
	err := Save(filepath.Join(dir, "index.html"), newPage(r, all).write)
	for _, c := range all {
		err = errors.Join(err, Save(filepath.Join(dir, c.name+".svg"), c.fileWriter(r.source())))
	}
	if err != nil {
		return fmt.Errorf("-report: %w", err)
	}
	return nil
}
