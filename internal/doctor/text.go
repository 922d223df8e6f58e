package doctor

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
)

// ErrFailed is what Err returns.
var ErrFailed = errors.New("some checks have failed")

// Err returns ErrFailed if something does not work, which the findings say.
func (r Report) Err() error {
	if r.Verdict == Fail {
		return ErrFailed
	}
	return nil
}

// WriteText prints a table, with the advice below each finding that has some.
func (r Report) WriteText(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, f := range r.Findings {
		fmt.Fprintf(tw, "%s\t%s\t%s\n", f.Verdict, f.Check, f.Found)
		if f.Advice != "" {
			fmt.Fprintf(tw, "\t\t-> %s\n", f.Advice)
		}
	}
	return tw.Flush()
}

// WriteJSON prints the report for programs.
func (r Report) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(r)
}
