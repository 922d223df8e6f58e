package simfabric

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
)

// Memory is to stay registered until every operation on it has been reaped, or the
// endpoint is shut down, whether or not the personality asks for registration.
func TestMisuse(t *testing.T) {
	send := func(a, _ *side) fabric.Op { return a.op(fabric.Send, 1, 0, 8) }
	write := func(a, b *side) fabric.Op { return a.write(b, fabric.Write, 2, 0, 8) }
	closed := "region of 65536 bytes closed under operation "
	for name, tt := range map[string]struct {
		op       func(a, b *side) fabric.Op
		weak     bool // completes when it is posted, which must be reaped, too
		death    Death
		reap     bool
		shutdown bool
		want     string
	}{
		"nothing posted":      {},
		"send under way":      {op: send, want: closed + "1 of kind 1"},
		"write under way":     {op: write, want: closed + "2 of kind 4"},
		"write complete":      {op: write, weak: true, want: closed + "2 of kind 4"},
		"write reaped":        {op: write, reap: true},
		"write shut down":     {op: write, shutdown: true},
		"to a silent peer":    {op: write, death: DeathSilent, reap: true, want: closed + "2 of kind 4"},
		"canceled and reaped": {op: write, death: DeathError, reap: true},
		"receive posted": {
			op:   func(a, _ *side) fabric.Op { return a.op(fabric.Recv, 3, 0, 8) },
			want: closed + "3 of kind 3",
		},
		"inject": {op: func(a, _ *side) fabric.Op { return a.op(fabric.Inject, 0, 0, 8) }},
		"not registered": {
			op: func(a, _ *side) fabric.Op {
				return fabric.Op{Kind: fabric.Send, To: a.to, Buf: make([]byte, 8)}
			},
			reap: true,
			want: "operation of kind 1 on 8 bytes that are not registered",
		},
	} {
		for _, late := range []bool{false, true} { // the peer dies before or after the post
			t.Run(name, func(t *testing.T) {
				p := Personality{InjectSize: 8, WeakCompletion: tt.weak}
				n, a, b := pair(t, Config{Delay: 5, Personality: p})
				b.post(b.op(fabric.Recv, 0, 0, 8))
				if tt.death != 0 && !late {
					n.Kill(b, tt.death)
				}
				if tt.op != nil {
					a.post(tt.op(a, b))
				}
				if tt.death != 0 && late {
					n.Kill(b, tt.death)
				}
				if tt.reap {
					a.poll(20)
				}
				if tt.shutdown {
					require.NoError(t, a.Shutdown())
				}
				require.NoError(t, a.local.Deregister())
				misuse, _, _ := strings.Cut(n.Stats().Misuse, "\n")
				assert.Equal(t, tt.want, misuse)
			})
		}
	}
}
