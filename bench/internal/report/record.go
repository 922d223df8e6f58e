// Package report turns samples into what people and programs read:
//
//	[]workload.Sample
//	    Summarize         medians over the rounds: a Result, which is a row
//	    Judge             compares results with Targets: Verdicts
//	Record: a run's results and verdicts, and how to repeat it; Read reads one that was kept
//	    WriteText         tables (table.go, legend.go, verdict.go)
//	    WriteReport       a page (page.go, page.html) with charts: charts.go chooses what they show,
//	                      draw.go and dots.go draw it, svg.go fits it to the page
//	    WriteJSON, WriteCSV, WriteBenchfmt
package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// A Record is one run of the benchmark, with everything that it takes to repeat it.
type Record struct {
	Commit  string    `json:"commit"`
	Command string    `json:"command"`
	Machine string    `json:"machine"`
	Server  string    `json:"server,omitempty"` // the other machine, if there are two
	Date    time.Time `json:"date"`
	Absent  string    `json:"absent,omitempty"` // which transports are not measured, and why
	// OthersCPU is how much of the CPUs' time other programs took just before the run, in percent.
	OthersCPU float64   `json:"others_cpu_percent,omitempty"`
	Rounds    int       `json:"rounds"`
	Rows      []Result  `json:"rows"`
	Verdicts  []Verdict `json:"verdicts,omitempty"`
}

// Read reads a file that -json has written, including those of earlier versions.
func Read(name string) (r Record, err error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return r, fmt.Errorf("%s is not what -json writes: %w", name, err)
	}
	if len(r.Rows) == 0 {
		return r, fmt.Errorf("%s has no rows", name)
	}
	for i := range r.Verdicts {
		v := &r.Verdicts[i]
		if v.Unit == "" { // older files have it only in the bounds
			v.Unit = unitOf(v.Must, v.Goal)
		}
	}
	return r, nil
}

// unitOf returns the unit in one of the bounds, such as "<= 4 KiB".
func unitOf(bounds ...string) string {
	for _, b := range bounds {
		if _, value, ok := strings.Cut(b, "= "); ok {
			return strings.TrimLeft(value, "0123456789.e+-")
		}
	}
	return ""
}

// source says in one line where the figures are from.
func (r Record) source() string {
	return fmt.Sprintf("%s; %s, commit %s, %s", oneLine(r.Command), oneLine(r.Machine), oneLine(r.Commit), r.Date.Format(time.RFC3339))
}

// WriteHeader prints what is known before the run.
func (r Record) WriteHeader(w io.Writer) error {
	lines := []string{r.Machine}
	if r.Busy() {
		lines = append(lines, r.BusyText())
	}
	if r.Server != "" {
		lines = append(lines, "server: "+r.Server)
	}
	lines = append(lines, "commit "+r.Commit+", "+r.Date.Format(time.RFC3339), r.Command)
	if r.Absent != "" {
		lines = append(lines, r.Absent)
	}
	_, err := fmt.Fprintln(w, strings.Join(lines, "\n")+"\n")
	return err
}

// Busy reports whether other programs took so much of the CPUs' time that they count.
func (r Record) Busy() bool { return r.OthersCPU >= 10 }

// BusyText says so, for a Record that is Busy.
func (r Record) BusyText() string {
	return fmt.Sprintf("this host is busy: other programs took %.0f%% of its CPUs' time before the run", r.OthersCPU)
}

// WriteTables prints the results of the run.
func (r Record) WriteTables(w io.Writer) error {
	if err := writeTable(w, r.Rows); err != nil || r.Verdicts == nil {
		return err
	}
	fmt.Fprintln(w)
	return writeVerdicts(w, r.Verdicts)
}

// WriteText prints the header and the results.
func (r Record) WriteText(w io.Writer) error {
	return errors.Join(r.WriteHeader(w), r.WriteTables(w))
}

// WriteJSON writes what Read reads.
func (r Record) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// Save writes a file, unless its name is empty.
func Save(name string, write func(io.Writer) error) (err error) {
	if name == "" {
		return nil
	}
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return write(f)
}
