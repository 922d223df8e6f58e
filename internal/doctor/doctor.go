// Package doctor examines a machine, and the process it runs in, for anything that keeps
// conns over a fabric from working, or from working well, and says what to do about it.
//
// The checks are functions of a Machine: files below a root, which tests make up,
// and what cannot be found in files.
package doctor

import (
	"fmt"
	"io/fs"
	"strings"

	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// Verdict says how bad a finding is.
type Verdict int

const (
	// OK: nothing needs to be done.
	OK Verdict = iota
	// Unknown: the system does not say.
	Unknown
	// Warn: conns work, but not as well as they could.
	Warn
	// Fail: something that is there does not work.
	Fail
)

var verdicts = []string{"ok", "unknown", "warn", "fail"}

// String returns the verdict as a word in lower case.
func (v Verdict) String() string {
	if v < 0 || int(v) >= len(verdicts) {
		return fmt.Sprintf("Verdict(%d)", int(v))
	}
	return verdicts[v]
}

// MarshalText implements encoding.TextMarshaler.
func (v Verdict) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (v *Verdict) UnmarshalText(text []byte) error {
	for i, name := range verdicts {
		if name == string(text) {
			*v = Verdict(i)
			return nil
		}
	}
	return fmt.Errorf("unknown verdict %q", text)
}

// Finding is the result of one check.
type Finding struct {
	Check   string  `json:"check"`
	Verdict Verdict `json:"verdict"`
	Found   string  `json:"found"`
	Advice  string  `json:"advice,omitempty"` // what to do, in one sentence
}

// Report is the result of all checks.
type Report struct {
	Verdict  Verdict   `json:"verdict"` // the worst of all findings
	Findings []Finding `json:"findings"`
}

// Machine is what is examined.
type Machine struct {
	Root     fs.FS    // proc, sys and dev are below it
	CPUs     int      // processors that the process may run on, as libfabric counts them
	MaxProcs int      // GOMAXPROCS
	Go       string   // version of Go
	Environ  []string // as os.Environ
	// Compiled is the version of libfabric that the program was compiled with, Library
	// the version that it has loaded, from File. They are empty if there is none.
	Compiled, Library, File string
	// Space returns how many bytes are free in a directory.
	Space func(dir string) (uint64, error)
	// Usable fails if this user may not read and write a file, or not make files in
	// a directory.
	Usable func(path string) error
	// Safe fails if other users may exchange this user's files in a directory.
	Safe func(dir string) error
	// Providers and ProvidersErr are what rdmanet.Transport.Providers returns.
	Providers    []rdmanet.ProviderInfo
	ProvidersErr error
}

// Examine runs all checks.
func Examine(m *Machine) Report {
	var r Report
	r.add(goVersion(m), libfabric(m), environment(m), providers(m))
	r.add(rdmaDevices(m)...)
	r.add(lockedMemory(m), sharedMemory(m), namespaces(m), processors(m), openFiles(m), hugePages(m))
	return r
}

func (r *Report) add(list ...Finding) {
	for _, f := range list {
		r.Findings = append(r.Findings, f)
		r.Verdict = max(r.Verdict, f.Verdict)
	}
}

// text reads a file, and trims it. It returns false if the file cannot be read.
func (m *Machine) text(path string) (string, bool) {
	b, err := fs.ReadFile(m.Root, path)
	return strings.TrimSpace(string(b)), err == nil
}

// exists reports whether a file or directory is there.
func (m *Machine) exists(path string) bool {
	_, err := fs.Stat(m.Root, path)
	return err == nil
}

// names lists the names in a directory. There are none if there is no directory.
func (m *Machine) names(dir string) (names []string) {
	list, _ := fs.ReadDir(m.Root, dir)
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

// status returns a field of /proc/self/status, "" if it is not there.
func (m *Machine) status(field string) string {
	text, _ := m.text("proc/self/status")
	for line := range strings.Lines(text) {
		if value, found := strings.CutPrefix(line, field+":"); found {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
