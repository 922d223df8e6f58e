package main

import (
	"cmp"
	"encoding/csv"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"golang.org/x/perf/benchfmt"
)

// writeCSV writes a line for every row, with the names and units of -json, and the error of a
// failed row.
func (r record) writeCSV(w io.Writer) error {
	c := csv.NewWriter(w)
	var header []string
	for _, f := range csvColumns {
		header = append(header, f.name)
	}
	_ = c.Write(header) // Error reports failures
	for _, row := range r.Rows {
		var line []string
		for _, f := range csvColumns {
			line = append(line, f.of(row))
		}
		_ = c.Write(line)
	}
	c.Flush()
	return c.Error()
}

type csvColumn struct {
	name string
	of   func(result) string
}

var csvColumns = []csvColumn{
	{"mode", func(r result) string { return r.Mode }},
	{"transport", func(r result) string { return r.Transport }},
	{"provider", func(r result) string { return r.Provider }},
	{"size", func(r result) string { return strconv.Itoa(r.Size) }},
	{"inflight", func(r result) string { return strconv.Itoa(r.Inflight) }},
	{"conns", func(r result) string { return strconv.Itoa(r.Conns) }},
	number("idle_peers", func(r result) float64 { return float64(r.Idle) }),
	number("busy_peers", func(r result) float64 { return float64(r.Busy) }),
	{"one_core", func(r result) string { return strconv.FormatBool(r.OneCore) }},
	{"busy_host", func(r result) string { return strconv.FormatBool(r.Load) }},
	number("p50_us", func(r result) float64 { return r.P50us }),
	number("p50_best_us", func(r result) float64 { return r.P50Best }),
	number("p90_us", func(r result) float64 { return r.P90us }),
	number("p99_us", func(r result) float64 { return r.P99us }),
	number("p999_us", func(r result) float64 { return r.P999us }),
	number("p99_pooled_us", func(r result) float64 { return r.P99Pooled }),
	number("ops_per_s", func(r result) float64 { return r.OpsPerS }),
	number("gb_per_s", func(r result) float64 { return r.GBPerS }),
	number("cpu_us_per_op", func(r result) float64 { return r.CPUusPer }),
	number("cpu_s_per_gb", func(r result) float64 { return r.CPUsPerGB }),
	number("allocs_per_op", func(r result) float64 { return r.Mallocs }),
	number("fairness", func(r result) float64 { return r.Fairness }),
	number("cpu_percent", func(r result) float64 { return r.CPUPercent }),
	number("registered_per_conn", func(r result) float64 { return r.Registered }),
	number("resident_per_conn", func(r result) float64 { return r.Resident }),
	number("server_used_per_peer", func(r result) float64 { return r.ServerUsed }),
	number("server_mapped_per_peer", func(r result) float64 { return r.ServerMapped }),
	number("server_resident_per_peer", func(r result) float64 { return r.ServerResident }),
	number("client_used", func(r result) float64 { return r.ClientUsed }),
	number("client_mapped", func(r result) float64 { return r.ClientMapped }),
	number("client_resident", func(r result) float64 { return r.ClientResident }),
	{"rounds", func(r result) string { return strconv.Itoa(r.Rounds) }},
	{"error", func(r result) string { return r.Error }},
	{"not_possible", func(r result) string { return r.NotPossible }},
}

// number is a column of figures, empty where a row has none.
func number(name string, of func(result) float64) csvColumn {
	return csvColumn{name, func(r result) string {
		v := of(r)
		if v == 0 {
			return ""
		}
		return strconv.FormatFloat(v, 'g', -1, 64)
	}}
}

// writeBenchfmt writes a line for every round in the format of Go's benchmarks, for benchstat, with
// the transport as a configuration key. It leaves out rows that have failed or that do nothing. If
// the rounds were not kept, their medians stand in for them.
func (r record) writeBenchfmt(w io.Writer) error {
	fmt.Fprintf(w, "# %s\n", r.source())
	to := benchfmt.NewWriter(w)
	cpu, _, _ := strings.Cut(r.Machine, ", ")
	for _, row := range r.Rows {
		if row.Error != "" || row.Mode == modeIdle {
			continue
		}
		result := benchfmt.Result{Name: benchfmt.Name(benchName(row.cell)), Config: config("pkg", modulePath, "cpu", cpu, "transport", row.label())}
		for _, s := range row.rounds() {
			if s.Ops == 0 {
				continue
			}
			result.Iters, result.Values = int(s.Ops), values(s, row.cell)
			if err := to.Write(&result); err != nil {
				return err
			}
		}
	}
	return nil
}

const modulePath = "github.com/seed202c38ff/fabricnet/bench"

func config(pairs ...string) (list []benchfmt.Config) {
	for i := 0; i < len(pairs); i += 2 {
		list = append(list, benchfmt.Config{Key: pairs[i], Value: []byte(oneLine(pairs[i+1])), File: true})
	}
	return list
}

// benchName returns the name of a row's work: "Rpc/size=64/inflight=64/conns=1".
func benchName(c cell) string {
	mode := cmp.Or(slug(c.Mode), "none")
	name := strings.ToUpper(mode[:1]) + mode[1:]
	name += fmt.Sprintf("/size=%d/inflight=%d/conns=%d", c.Size, c.Inflight, c.Conns)
	if c.peers() > 0 {
		name += fmt.Sprintf("/idlepeers=%d/busypeers=%d", c.Idle, c.Busy)
	}
	if c.OneCore {
		name += "/onecore"
	}
	if c.Load {
		name += "/busyhost"
	}
	return name
}

// values returns a round's figures, with times in nanoseconds per operation.
func values(s sample, c cell) []benchfmt.Value {
	ops := float64(s.Ops)
	list := []benchfmt.Value{{Value: ratio(float64(s.Elapsed), ops), Unit: "ns/op"}}
	if c.Mode != modeConn && c.Mode != modeFirst {
		list = append(list, benchfmt.Value{Value: ratio(ops*float64(c.Size)/1e6, s.Elapsed.Seconds()), Unit: "MB/s"})
	}
	for _, v := range []benchfmt.Value{
		{Value: float64(s.P50), Unit: "p50-ns"}, {Value: float64(s.P90), Unit: "p90-ns"},
		{Value: float64(s.P99), Unit: "p99-ns"}, {Value: float64(s.P999), Unit: "p999-ns"},
	} {
		if v.Value > 0 { // else it is not known
			list = append(list, v)
		}
	}
	return append(list, benchfmt.Value{Value: ratio(float64(s.cpu()), ops), Unit: "cpu-ns/op"},
		benchfmt.Value{Value: ratio(float64(s.mallocs()), ops), Unit: "allocs/op"})
}

// rounds returns r's samples. If they were not kept, it returns one with the medians.
func (r result) rounds() []sample {
	if len(r.Samples) > 0 || r.OpsPerS <= 0 {
		return r.Samples
	}
	nanos := func(us float64) time.Duration { return time.Duration(us * float64(time.Microsecond)) }
	s := sample{
		Ops: uint64(max(r.OpsPerS, 1)), P50: nanos(r.P50us), P90: nanos(r.P90us), P99: nanos(r.P99us), P999: nanos(r.P999us),
	}
	ops := float64(s.Ops)
	s.Elapsed = time.Duration(ops / r.OpsPerS * float64(time.Second))
	s.Client = usage{CPU: nanos(r.CPUusPer * ops), Mallocs: uint64(r.Mallocs * ops)}
	return []sample{s}
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
