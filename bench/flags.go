package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"

	"github.com/seed202c38ff/fabricnet/bench/internal/report"
)

// controlPort is where -s waits for -c, unless -port says otherwise.
const controlPort = 18516

// outputFlags defines the flags that say what is written, and where.
func (p *plan) outputFlags(f *flag.FlagSet) {
	f.StringVar(&p.jsonFile, "json", "", "write the results to this `file`")
	f.StringVar(&p.textFile, "text", "", "write what is printed to this `file`, too")
	f.StringVar(&p.csvFile, "csv", "", "write the rows to this `file` as comma-separated values")
	f.StringVar(&p.benchFile, "benchfmt", "", "write the rounds to this `file` in the format of Go's benchmarks: benchstat -col transport file")
	f.StringVar(&p.reportDir, "report", "", "write a page with plots and tables, index.html, and the plots as SVG files into this `directory`")
	f.StringVar(&p.from, "from", "", "measure nothing, but read the results from this `file`, which -json has written")
	f.StringVar(&p.profileDir, "profile", "", "write CPU profiles of both processes for every row and round into this `directory`")
}

// remoteFlags defines the flags for two machines.
func (p *plan) remoteFlags(f *flag.FlagSet) {
	f.BoolVar(&p.serve, "s", false, "serve measurements of clients (-c) on other machines, at -host; whoever reaches its port can have it work")
	f.StringVar(&p.server, "c", "", "measure with the server (-s) at this `host`, without unix, -targets, -verbs and -onecore")
	f.IntVar(&p.port, "port", controlPort, "TCP port by which -c tells -s what to do; 0 with -s is any")
}

// checkModes refuses flags that make no sense together. fixed says that other flags determine what
// is measured, and thisMachine that all processes have to be on this machine.
func (p *plan) checkModes(fixed, thisMachine bool) error {
	switch {
	case p.port < 0 || p.port > 65535 || p.port == 0 && p.server != "":
		return errors.New("-port must be that of a TCP port")
	case p.serve && p.server != "" || p.serve && p.from != "" || p.from != "" && p.server != "":
		return errors.New("-s, -c and -from exclude each other")
	case (p.serve || p.from != "" || p.server != "") && (fixed || thisMachine):
		return errors.New("-s, -c and -from exclude -targets, -verbs, -onecore and -busy")
	case p.from != "" && p.profileDir != "":
		return errors.New("-from measures nothing that -profile could show")
	}
	if p.serve {
		if a, err := netip.ParseAddr(p.host); err == nil && a.IsUnspecified() {
			return fmt.Errorf("-host %s: -s needs an address that clients can dial", p.host)
		}
	}
	if p.server != "" {
		p.server = net.JoinHostPort(p.server, strconv.Itoa(p.port))
	}
	return nil
}

// save writes what was asked for.
func (p plan) save(r report.Record) error {
	return errors.Join(
		report.Save(p.jsonFile, r.WriteJSON), report.Save(p.textFile, r.WriteText), report.Save(p.csvFile, r.WriteCSV),
		report.Save(p.benchFile, r.WriteBenchfmt), report.WriteReport(p.reportDir, r))
}

// convert writes a kept result in the forms that were asked for.
func (p plan) convert(w io.Writer) error {
	r, err := report.Read(p.from)
	if err != nil {
		return fmt.Errorf("-from: %w", err)
	}
	return errors.Join(r.WriteText(w), p.save(r))
}

func (p plan) makeProfileDir() error {
	if p.profileDir == "" {
		return nil
	}
	return os.MkdirAll(p.profileDir, 0o755)
}
