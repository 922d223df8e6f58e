package report

import (
	"cmp"
	"encoding/csv"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"golang.org/x/perf/benchfmt"

	"github.com/seed202c38ff/fabricnet/bench/internal/workload"
)

// WriteCSV writes a line for every row, with the names and units of -json, and the error of a
// failed row.
func (r Record) WriteCSV(w io.Writer) error {
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
	of   func(Result) string
}

var csvColumns = []csvColumn{
	{"mode", func(r Result) string { return r.Mode }},
	{"transport", func(r Result) string { return r.Transport }},
	{"provider", func(r Result) string { return r.Provider }},
	{"size", func(r Result) string { return strconv.Itoa(r.Size) }},
	{"inflight", func(r Result) string { return strconv.Itoa(r.Inflight) }},
	{"conns", func(r Result) string { return strconv.Itoa(r.Conns) }},
	number("idle_peers", func(r Result) float64 { return float64(r.Idle) }),
	number("busy_peers", func(r Result) float64 { return float64(r.Busy) }),
	{"one_core", func(r Result) string { return strconv.FormatBool(r.OneCore) }},
	{"busy_host", func(r Result) string { return strconv.FormatBool(r.Load) }},
	number("p50_us", func(r Result) float64 { return r.P50us }),
	number("p50_best_us", func(r Result) float64 { return r.P50Best }),
	number("p90_us", func(r Result) float64 { return r.P90us }),
	number("p99_us", func(r Result) float64 { return r.P99us }),
	number("p999_us", func(r Result) float64 { return r.P999us }),
	number("p99_pooled_us", func(r Result) float64 { return r.P99Pooled }),
	number("ops_per_s", func(r Result) float64 { return r.OpsPerS }),
	number("gb_per_s", func(r Result) float64 { return r.GBPerS }),
	number("cpu_us_per_op", func(r Result) float64 { return r.CPUusPer }),
	number("cpu_s_per_gb", func(r Result) float64 { return r.CPUsPerGB }),
	number("allocs_per_op", func(r Result) float64 { return r.Mallocs }),
	number("fairness", func(r Result) float64 { return r.Fairness }),
	number("cpu_percent", func(r Result) float64 { return r.CPUPercent }),
	number("registered_per_conn", func(r Result) float64 { return r.Registered }),
	number("resident_per_conn", func(r Result) float64 { return r.Resident }),
	number("server_used_per_peer", func(r Result) float64 { return r.ServerUsed }),
	number("server_mapped_per_peer", func(r Result) float64 { return r.ServerMapped }),
	number("server_resident_per_peer", func(r Result) float64 { return r.ServerResident }),
	number("client_used", func(r Result) float64 { return r.ClientUsed }),
	number("client_mapped", func(r Result) float64 { return r.ClientMapped }),
	number("client_resident", func(r Result) float64 { return r.ClientResident }),
	{"rounds", func(r Result) string { return strconv.Itoa(r.Rounds) }},
	{"error", func(r Result) string { return r.Error }},
	{"not_possible", func(r Result) string { return r.NotPossible }},
}

// number is a column of figures, empty where a row has none.
func number(name string, of func(Result) float64) csvColumn {
	return csvColumn{name, func(r Result) string {
		v := of(r)
		if v == 0 {
			return ""
		}
		return strconv.FormatFloat(v, 'g', -1, 64)
	}}
}

// WriteBenchfmt writes a line for every round in the format of Go's benchmarks, for benchstat, with
// the transport as a configuration key. It leaves out rows that have failed or that do nothing. If
// the rounds were not kept, their medians stand in for them.
func (r Record) WriteBenchfmt(w io.Writer) error {
	fmt.Fprintf(w, "# %s\n", r.source())
	to := benchfmt.NewWriter(w)
	cpu, _, _ := strings.Cut(r.Machine, ", ")
	for _, row := range r.Rows {
		if row.Error != "" || row.Mode == workload.ModeIdle {
			continue
		}
		result := benchfmt.Result{Name: benchfmt.Name(benchName(row.Case)), Config: config("pkg", modulePath, "cpu", cpu, "transport", row.Label())}
		for _, s := range row.rounds() {
			if s.Ops == 0 {
				continue
			}
			result.Iters, result.Values = int(s.Ops), values(s, row.Case)
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
func benchName(c workload.Case) string {
	mode := cmp.Or(workload.Slug(c.Mode), "none")
	name := strings.ToUpper(mode[:1]) + mode[1:]
	name += fmt.Sprintf("/size=%d/inflight=%d/conns=%d", c.Size, c.Inflight, c.Conns)
	if c.Peers() > 0 {
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
func values(s workload.Sample, c workload.Case) []benchfmt.Value {
	ops := float64(s.Ops)
	list := []benchfmt.Value{{Value: ratio(float64(s.Elapsed), ops), Unit: "ns/op"}}
	if c.Mode != workload.ModeConn && c.Mode != workload.ModeFirst {
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
	return append(list, benchfmt.Value{Value: ratio(float64(s.CPU()), ops), Unit: "cpu-ns/op"},
		benchfmt.Value{Value: ratio(float64(s.Mallocs()), ops), Unit: "allocs/op"})
}

// rounds returns r's samples. If they were not kept, it returns one with the medians.
func (r Result) rounds() []workload.Sample {
	if len(r.Samples) > 0 || r.OpsPerS <= 0 {
		return r.Samples
	}
	nanos := func(us float64) time.Duration { return time.Duration(us * float64(time.Microsecond)) }
	s := workload.Sample{
		Ops: uint64(max(r.OpsPerS, 1)), P50: nanos(r.P50us), P90: nanos(r.P90us), P99: nanos(r.P99us), P999: nanos(r.P999us),
	}
	ops := float64(s.Ops)
	s.Elapsed = time.Duration(ops / r.OpsPerS * float64(time.Second))
	s.Client = workload.Usage{CPU: nanos(r.CPUusPer * ops), Mallocs: uint64(r.Mallocs * ops)}
	return []workload.Sample{s}
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
