package engine

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"weak"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
)

// TestWhoReaps: nothing that a peer or a stream does can reap a peer, maybe its own: only the end of an entry into the core.
func TestWhoReaps(t *testing.T) {
	uses := usesOf(t)
	require.Contains(t, uses["Endpoint.leave"], "core.flush")
	require.Contains(t, uses["core.flush"], "core.reap")
	for name := range uses {
		if strings.HasPrefix(name, "peer.") || strings.HasPrefix(name, "stream.") {
			assert.Empty(t, wayTo("core.reap", name, uses, map[string]bool{}), "from %s", name)
		}
	}
}

// TestNothingIsKeptOfPeers: an endpoint holds on to none of the peers that have come and gone, except for the last few.
func TestNothingIsKeptOfPeers(t *testing.T) {
	for _, sim := range []simfabric.Personality{simfabric.TCP(), simfabric.Net(), simfabric.Verbs()} {
		n := simfabric.New(simfabric.Config{Seed: 1, Personality: sim})
		a, b := openOn(t, n, sim.Provider, Config{}), openOn(t, n, sim.Provider, Config{})
		var peers []weak.Pointer[peer]
		for range 20 {
			dials, listens := introduce(t, a, b, nil)
			require.NoError(t, dials.Check(t.Context()))
			dials.over(ErrStuck)
			listens.over(ErrStuck)
			peers = append(peers, weak.Make(dials.p), weak.Make(listens.p))
		}
		runtime.GC()
		kept := slices.DeleteFunc(peers, func(p weak.Pointer[peer]) bool { return p.Value() == nil })
		assert.LessOrEqual(t, len(kept), 4, sim.Provider)
		require.NoError(t, errors.Join(a.Close(), b.Close()))
	}
}

// TestDoomed: a doomed peer takes no frames, posts none, and opens no conns. It is reaped when the entry into the core ends.
func TestDoomed(t *testing.T) {
	besiege(t, simfabric.TCP(), func(b *besieged) {
		p, c := b.meet(), b.e.core
		locked(b.e, func() {
			before := c.stats
			p.ctl.push(ctlFrame{t: framing.TypeCredit})
			p.out = append(p.out, outOp{op: fabric.Op{Kind: fabric.Inject, To: p.addr, Buf: make([]byte, framing.HeaderSize)}})
			p.doom(errInjected)
			p.doom(errProtocol)
			require.Equal(t, errInjected, p.err, "the first")
			p.control(ctlFrame{t: framing.TypeCredit})
			p.flush()
			c.push(p)
			p.grant()
			assert.Equal(t, 1, p.ctl.len())
			assert.Equal(t, before.Posted, c.stats.Posted)
			(&framing.Header{Type: framing.TypeCredit, Peer: p.id, Proof: p.proofIn}).Encode(c.rx.Bytes(0))
			c.received(0, framing.HeaderSize)
			c.recvs, c.owners = c.recvs[:len(c.recvs)-1], c.owners[:len(c.owners)-1] // the slot is still posted
			assert.Equal(t, before.FramesReceived, c.stats.FramesReceived)
			assert.Equal(t, before.FramesDropped+1, c.stats.FramesDropped)
			_, err := p.open(1)
			assert.ErrorIs(t, err, syscall.ECONNRESET)
			assert.Same(t, p, c.peers[p.id], "not reaped yet")
			assert.False(t, p.reaped)
		})
		assert.True(t, p.reaped)
		assert.NotContains(t, c.order, p)
	})
}

// wayTo returns a way along which one function can reach another, nil if there is none.
func wayTo(to, from string, uses map[string]map[string]bool, seen map[string]bool) []string {
	if from == to {
		return []string{to}
	}
	if seen[from] {
		return nil
	}
	seen[from] = true
	for next := range uses[from] {
		if way := wayTo(to, next, uses, seen); way != nil {
			return append([]string{from}, way...)
		}
	}
	return nil
}

// usesOf maps each function of the package to those that it calls, or passes on. Methods are named by their type.
func usesOf(t *testing.T) map[string]map[string]bool {
	t.Helper()
	fset := token.NewFileSet()
	names, err := filepath.Glob("*.go")
	require.NoError(t, err)
	var files []*ast.File
	for _, name := range names {
		if !strings.HasSuffix(name, "_test.go") {
			file, err := parser.ParseFile(fset, name, nil, parser.SkipObjectResolution)
			require.NoError(t, err)
			files = append(files, file)
		}
	}
	info := &types.Info{Defs: map[*ast.Ident]types.Object{}, Uses: map[*ast.Ident]types.Object{}}
	cfg := types.Config{Importer: empty{}, Error: func(error) {}} // what is not known of other packages
	_, _ = cfg.Check("engine", fset, files, info)
	uses := make(map[string]map[string]bool)
	for _, file := range files {
		for _, d := range file.Decls {
			decl, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			mine := make(map[string]bool)
			uses[fullName(info.Defs[decl.Name].(*types.Func))] = mine
			ast.Inspect(decl, func(n ast.Node) bool {
				id, _ := n.(*ast.Ident)
				if f, ok := info.Uses[id].(*types.Func); ok {
					mine[fullName(f)] = true
				}
				return true
			})
		}
	}
	return uses
}

func fullName(f *types.Func) string {
	if recv := f.Signature().Recv(); recv != nil {
		at := recv.Type()
		if p, ok := at.(*types.Pointer); ok {
			at = p.Elem()
		}
		if n, ok := at.(*types.Named); ok {
			return n.Obj().Name() + "." + f.Name()
		}
	}
	return f.Name()
}

// empty imports packages without contents.
type empty struct{}

func (empty) Import(name string) (*types.Package, error) {
	p := types.NewPackage(name, path.Base(name))
	p.MarkComplete()
	return p, nil
}
