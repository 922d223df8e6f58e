package rdmadebug

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
)

func writeText(b *bytes.Buffer, p *page) error {
	p = p.printable()
	tw := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "STATE\tUNREAD\tLOCAL\tPEER\tSIDE\tAGE\tPROVIDER\tSENT\tRECEIVED\tPOLLS\tWAITS FOR")
	for _, c := range p.Conns {
		fmt.Fprintf(tw, "%s\t%d\t%s\t%s\t%s\t%s\t%s\t%d\t%d\t%s\t%s\n", c.Phase, c.Unread, c.Local, c.Remote, c.Side(), c.Age,
			c.Provider, c.Sent, c.Received, c.Polls(), c.Waits())
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	if p.NotShown > 0 {
		fmt.Fprintf(b, "and %d more: see ?limit=\n", p.NotShown)
	}
	for _, c := range p.Conns {
		for _, note := range c.Refused {
			fmt.Fprintf(b, "\n%s - %s: %s", c.Local, c.Remote, note)
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
		list = append(list, k+"="+s.Labels[k])
	}
	if len(list) == 0 {
		return s.Name
	}
	return s.Name + "{" + strings.Join(list, ",") + "}"
}
