//go:build linux && cgo

package ofifabric

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/cgo/ofi"
	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/engine"
	"github.com/seed202c38ff/fabricnet/internal/testenv"
)

var update = flag.Bool("update", false, "write the table of quirks into docs/providers.md")

// names are providers that rows may be about.
var names = []string{
	"shm", "tcp", "net", "tcp;ofi_rxm", "net;ofi_rxm", "verbs", "verbs;ofi_rxm", "verbs;ofi_rxd", "udp;ofi_rxd",
	"efa", "efa-direct", "cxi", "opx", "psm", "psm2", "psm3", "sockets",
}

// versions returns each bound of each row and the versions just below and above it, and some others:
// the newest ones, and short forms, since some libraries do not tell their third number.
func versions() (list []string) {
	for _, q := range quirks {
		for _, bound := range []string{q.from, q.before} {
			if bound != "" {
				list = append(list, bound, just(bound, -1), just(bound, 1))
			}
		}
	}
	return append(list, "1.17", "2.6", "2.6.0", "3.0")
}

// just returns the version just before or after bound, with three numbers.
func just(bound string, step int) string {
	n := [3]int{}
	_, _ = fmt.Sscanf(bound, "%d.%d.%d", &n[0], &n[1], &n[2])
	if n[2] += step; n[2] < 0 {
		n[2] = 99
		if n[1]--; n[1] < 0 {
			n[1] = 99
			n[0]--
		}
	}
	return fmt.Sprintf("%d.%d.%d", n[0], n[1], n[2])
}

// machines returns machines with and without each of the things that settings depend on.
func machines() (list []machine) {
	for _, entries := range []int{-1, 0, 100, 1023, 32767, 1 << 22} {
		for bits := range 16 {
			list = append(list, machine{
				cq: entries, srq: entries,
				hfi1: bits&1 != 0, cxi: bits&2 != 0, kdreg2: bits&4 != 0, userfaultfd: bits&8 != 0,
			})
		}
	}
	return list
}

func TestQuirksAreComplete(t *testing.T) {
	for _, q := range quirks {
		assert.NotEmpty(t, q.why, q)
		assert.NotEmpty(t, q.source, q)
		assert.NotEmpty(t, effects[q.does], q)
		assert.True(t, slices.ContainsFunc(names, q.matches), "%s is no provider", q.provider)
		assert.Equal(t, q.does == set, q.value != nil, q)
		assert.Equal(t, q.does == set || q.does == alike || q.does == fabricIsProvider, q.arg != "", q)
		if q.from != "" && q.before != "" {
			assert.Negative(t, compareVersions(q.from, q.before, 3), q)
		}
	}
}

// A provider gets each effect from one row at most. The rows that set a variable are tried in order,
// and only the last of them may be the one for all providers.
func TestQuirksDoNotContradict(t *testing.T) {
	for _, version := range versions() {
		for _, name := range names {
			seen := make(map[effect]string)
			for _, q := range quirks {
				if q.does == set || !q.matches(name) || !q.during(version) {
					continue
				}
				assert.Empty(t, seen[q.does], "%s of %s, %s: two rows", name, version, effects[q.does])
				seen[q.does] = q.why
			}
		}
	}
	last := make(map[string]bool)
	for i, q := range quirks {
		if q.does == set {
			assert.False(t, last[q.arg], "row %d: %s is set for all above", i, q.arg)
			last[q.arg] = q.provider == "*"
		}
	}
}

// Rows apply from their first version on, and no longer in the version that has the fix.
func TestQuirksAtTheEdges(t *testing.T) {
	for _, q := range quirks {
		if q.from != "" {
			assert.True(t, q.during(q.from), q)
			assert.True(t, q.during(just(q.from, 1)) || just(q.from, 1) == q.before, q)
			assert.False(t, q.during(just(q.from, -1)), q)
		}
		if q.before != "" {
			assert.False(t, q.during(q.before), q)
			assert.True(t, q.during(just(q.before, -1)), q)
			assert.False(t, q.during(just(q.before, 1)), q)
		}
	}
	for _, tt := range []struct {
		from, before, version string
		want                  bool
	}{
		{"", "", "1.17", true},
		{"1.18", "1.18.2", "1.18", true}, // the third number is unknown
		{"1.18", "1.18.2", "1.18.2", false},
		{"2.5.1", "", "2.5", true},
		{"2.5.1", "", "2.5.0", false},
		{"2.5.1", "", "2.4", false},
		{"2.5", "", "2.10", true},
		{"2.5", "", "2.5.0rc1", true},
	} {
		q := quirk{from: tt.from, before: tt.before}
		assert.Equal(t, tt.want, q.during(tt.version), tt)
	}
}

func TestQuirksMatchLayers(t *testing.T) {
	for pattern, want := range map[string][]string{
		"shm":           {"shm"},
		"net;*":         {"net", "net;ofi_rxm"},
		"tcp;ofi_rxm":   {"tcp;ofi_rxm"},
		"*;ofi_rxm":     {"tcp;ofi_rxm", "net;ofi_rxm", "verbs;ofi_rxm"},
		"efa":           {"efa"},
		"*":             names,
		"psm":           {"psm"},
		"verbs;ofi_rxm": {"verbs;ofi_rxm"},
	} {
		var got []string
		for _, name := range names {
			if q := (quirk{provider: pattern}); q.matches(name) {
				got = append(got, name)
			}
		}
		assert.Equal(t, want, got, pattern)
	}
}

// everywhere are effects that all providers get: rows only say which of them need it.
var everywhere = []string{"clamped", "dataIsWrite", "ibIfNamed"}

// Every effect has a row, and code that asks for it.
func TestQuirksHaveTheirEffects(t *testing.T) {
	for does, text := range effects {
		assert.True(t, slices.ContainsFunc(quirks, func(q quirk) bool { return q.does == does }), "no row: %s", text)
	}
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	var consts, used []string
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GenDecl:
				if n.Tok == token.CONST && len(n.Specs) == len(effects) {
					for _, s := range n.Specs {
						consts = append(consts, s.(*ast.ValueSpec).Names[0].Name)
					}
				}
				return n.Tok != token.CONST && n.Tok != token.VAR || name != "quirks.go" // the table itself
			case *ast.Ident:
				used = append(used, n.Name)
			}
			return true
		})
	}
	require.Len(t, consts, len(effects))
	for _, c := range consts {
		assert.True(t, slices.Contains(used, c) || slices.Contains(everywhere, c), "nothing asks for %s", c)
	}
}

func TestSettings(t *testing.T) {
	const roce, mlx5 = 32767, 4194303
	rxm := func(universe, shared, receives string) map[string]string {
		return map[string]string{
			monitorVar: "disabled", "FI_UNIVERSE_SIZE": universe,
			"FI_OFI_RXM_USE_SRX": shared, "FI_OFI_RXM_MSG_RX_SIZE": receives, "FI_OFI_RXM_BUFFER_SIZE": "8448",
		}
	}
	for name, tt := range map[string]struct {
		m       machine
		version string
		want    map[string]string
	}{
		"no device":                {machine{cq: -1, srq: -1}, "1.17", rxm("", "", "1024")},
		"no shared queue":          {machine{cq: mlx5, srq: 0}, "1.17", rxm("", "", "")},
		"large":                    {machine{cq: mlx5, srq: 32767}, "2.6", rxm("256", "1", "1024")},
		"Soft-RoCE":                {machine{cq: roce, srq: 32767}, "1.17", rxm("127", "1", "1024")},
		"tiny":                     {machine{cq: 100, srq: 100}, "1.17", rxm("1", "", "")},
		"cxi":                      {machine{cxi: true}, "2.6", map[string]string{monitorVar: "disabled"}},
		"cxi, kdreg2":              {machine{cxi: true, kdreg2: true, userfaultfd: true}, "2.0", map[string]string{monitorVar: "kdreg2"}},
		"cxi, kdreg2, old library": {machine{cxi: true, kdreg2: true, userfaultfd: true}, "1.22", map[string]string{monitorVar: "userfaultfd"}},
		"opx, kdreg2":              {machine{hfi1: true, kdreg2: true, userfaultfd: true}, "2.6", map[string]string{monitorVar: "kdreg2"}},
		"opx, kdreg2, old library": {machine{hfi1: true, kdreg2: true, userfaultfd: true}, "2.5", map[string]string{monitorVar: "userfaultfd"}},
		"opx, only kdreg2, old":    {machine{hfi1: true, kdreg2: true}, "2.5", map[string]string{monitorVar: "disabled"}},
		"opx before 1.18":          {machine{hfi1: true, userfaultfd: true}, "1.17", map[string]string{monitorVar: "disabled"}},
		"cxi and opx":              {machine{hfi1: true, cxi: true, kdreg2: true, userfaultfd: true}, "2.5", map[string]string{monitorVar: "userfaultfd"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := settingsOf(tt.m, tt.version)
			for variable, value := range tt.want {
				assert.Equal(t, value, got[variable], variable)
			}
			assert.Equal(t, "0", got["FI_EFA_ENABLE_SHM_TRANSFER"])
		})
	}
	for _, m := range machines() {
		for _, version := range versions() {
			got := settingsOf(m, version)
			assert.NotEmpty(t, got[monitorVar])
			if got[monitorVar] == "kdreg2" {
				assert.True(t, m.kdreg2 && (m.cxi || m.hfi1), "%+v", m)
			}
		}
	}
}

func settingsOf(m machine, version string) map[string]string {
	list := make(map[string]string)
	settings(m, func() string { return version }, func(name, value string) {
		if _, there := list[name]; !there {
			list[name] = value
		}
	})
	return list
}

// Asking for libfabric's version loads the library and runs its constructors, so settings that
// those read have to be made before.
func TestSettingsBeforeTheLibraryIsLoaded(t *testing.T) {
	var before []string
	loaded := false
	settings(machine{}, func() string { loaded = true; return "1.17" }, func(name, _ string) {
		if !loaded {
			before = append(before, name)
		}
	})
	assert.Equal(t, []string{"IPATH_NO_BACKTRACE"}, before)
}

// opx is not offered where registered memory cannot be watched.
func TestUnmonitored(t *testing.T) {
	prepare()
	assert.False(t, unmonitored("shm"))
	t.Setenv(monitorVar, "disabled")
	assert.Equal(t, (&quirk{from: "1.18"}).during(ofi.LibraryVersion()), unmonitored("opx"))
	if unmonitored("opx") {
		_, err := New().Open("opx", netip.Addr{})
		assert.ErrorContains(t, err, "kdreg2")
	}
	t.Setenv(monitorVar, "userfaultfd")
	assert.False(t, unmonitored("opx"))
}

// If a provider refuses deeper queues, it keeps the depths that it has chosen itself.
func TestDeeper(t *testing.T) {
	w, err := probe(testenv.Native, "", netip.MustParseAddr("127.0.0.1"))
	require.NoError(t, err)
	list, info, w, err := best(w)
	require.NoError(t, err)
	defer list.Free()
	assert.Less(t, info.RxSize(), ofi.MaxDepth, "or there is nothing to ask for")
	none, _ := deeper(w, info, 1<<20)
	assert.Nil(t, none)
	some, deep := deeper(w, info, ofi.MaxDepth)
	require.NotNil(t, some)
	defer some.Free()
	assert.Equal(t, ofi.MaxDepth, deep.RxSize())
	assert.Equal(t, ofi.MaxDepth, deep.TxSize())
	again, _ := deeper(w, deep, ofi.MaxDepth)
	assert.Nil(t, again)
	ep, err := New().Open(testenv.Native, netip.MustParseAddr("127.0.0.1"))
	require.NoError(t, err)
	defer ep.Close()
	assert.Equal(t, ofi.MaxDepth, ep.Attr().RxDepth)
	assert.Equal(t, ofi.MaxDepth, ep.Attr().TxDepth)
}

// efa-direct is a fabric of efa to libfabric, and a provider of its own here.
func TestFabricOfAProvider(t *testing.T) {
	h := hintsFor("efa-direct")
	assert.Equal(t, []string{"efa", "efa-direct"}, []string{h.Provider, h.Fabric})
	h = hintsFor("efa")
	assert.Equal(t, []string{"efa", ""}, []string{h.Provider, h.Fabric})
	assert.Equal(t, "efa-direct", nameOf("efa", "efa-direct"))
	assert.Equal(t, "efa", nameOf("efa", "efa"))
	assert.Equal(t, "tcp", nameOf("tcp", "efa-direct"))
}

// docs/providers.md shows the table of quirks as it is in the code.
func TestQuirksAreDocumented(t *testing.T) {
	const begin, end = "<!-- quirks: go test ./internal/fabric/ofifabric -run Documented -update -->\n", "<!-- end of quirks -->\n"
	const path = "../../../docs/providers.md"
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	head, rest, found := strings.Cut(string(text), begin)
	require.True(t, found)
	table, tail, found := strings.Cut(rest, end)
	require.True(t, found)
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(head+begin+quirksTable()+end+tail), 0o644))
		return
	}
	assert.Equal(t, quirksTable(), table, "run it with -update")
}

func quirksTable() string {
	var b strings.Builder
	b.WriteString("| provider | libfabric | what is done | why | where |\n|---|---|---|---|---|\n")
	for _, q := range quirks {
		what := effects[q.does]
		switch {
		case q.arg != "" && q.note != "":
			what += " " + q.arg + " to " + q.note
		case q.arg != "":
			what += " " + q.arg
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", q.provider, q.span(), what, q.why, q.source)
	}
	return b.String()
}

func (q *quirk) span() string {
	switch {
	case q.from == "" && q.before == "":
		return "all"
	case q.before == "":
		return "from " + q.from
	case q.from == "":
		return "before " + q.before
	}
	return q.from + " to before " + q.before
}

// ofi_rxm would split a frame that does not fit into one of its buffers.
func TestFramesFitBuffers(t *testing.T) {
	assert.GreaterOrEqual(t, rxmBuffer, framing.HeaderSize+engine.EagerPayload)
}
