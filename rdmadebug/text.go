package rdmadebug

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// plain keeps text that a peer has sent from doing anything to a terminal.
func plain(s string) string {
	q := strconv.QuoteToGraphic(s)
	return strings.ReplaceAll(q[1:len(q)-1], `\"`, `"`)
}

func writeText(b *bytes.Buffer, p *page) error {
	tw := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "STATE\tUNREAD\tLOCAL\tPEER\tSIDE\tAGE\tPROVIDER\tSENT\tRECEIVED\tPOLLS\tWAITS FOR")
	for _, c := range p.Conns {
		fmt.Fprintf(tw, "%s\t%d\t%s\t%s\t%s\t%s\t%s\t%d\t%d\t%s\t%s\n", plain(c.Phase), c.Unread, plain(c.Local), plain(c.Remote), c.Side(), c.Age,
			plain(c.Transport()), c.Sent, c.Received, c.Polls(), c.Waits())
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	if p.NotShown > 0 {
		fmt.Fprintf(b, "and %d more: see ?limit=\n", p.NotShown)
	}
	for _, c := range p.Conns {
		for _, note := range c.Notes() {
			fmt.Fprintf(b, "\n%s - %s: %s", plain(c.Local), plain(c.Remote), plain(note))
		}
	}
	b.WriteString("\n\n")
	for _, s := range p.Metrics {
		fmt.Fprintf(tw, "%s\t%d\t%s\n", label(s), s.Value, strings.Trim(s.Unit, "{}"))
	}
	return tw.Flush()
}

// label returns the name of a metric with its labels.
func label(s sample) string {
	var list []string
	for _, k := range slices.Sorted(maps.Keys(s.Labels)) {
		list = append(list, k+"="+plain(s.Labels[k]))
	}
	if len(list) == 0 {
		return s.Name
	}
	return s.Name + "{" + strings.Join(list, ",") + "}"
}
