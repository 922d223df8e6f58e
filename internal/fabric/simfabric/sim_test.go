package simfabric

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/pool"
)

// side is an endpoint with memory and the other side's address.
type side struct {
	fabric.Endpoint
	t       testing.TB
	to      fabric.Addr
	local   *pool.Slab
	landing *pool.Slab
}

const slabSize = 1 << 16

func open(t testing.TB, n *Network) *side {
	t.Helper()
	infos, err := n.Providers(netip.Addr{})
	require.NoError(t, err)
	ep, err := n.Open(infos[0].Name, netip.Addr{})
	require.NoError(t, err)
	budget := pool.NewBudget(0)
	s := &side{Endpoint: ep, t: t}
	s.local, err = pool.NewSlab(budget, ep, slabSize, pool.AccessLocal)
	require.NoError(t, err)
	s.landing, err = pool.NewSlab(budget, ep, slabSize, pool.AccessRemoteWrite)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, s.local.Close())
		require.NoError(t, s.landing.Close())
		if err := ep.Close(); err != nil {
			require.ErrorIs(t, err, ErrClosed)
		}
	})
	return s
}

func pair(t testing.TB, cfg Config) (n *Network, a, b *side) {
	t.Helper()
	n = New(cfg)
	a, b = open(t, n), open(t, n)
	var err error
	a.to, err = a.Insert(b.Name())
	require.NoError(t, err)
	b.to, err = b.Insert(a.Name())
	require.NoError(t, err)
	return n, a, b
}

// op returns an operation on local memory at offset at.
func (s *side) op(kind fabric.Kind, tag uint32, at, size int) fabric.Op {
	return fabric.Op{
		Kind: kind, Tag: tag, Data: uint64(tag), To: s.to,
		Buf: s.local.Bytes()[at : at+size], Desc: s.local.Region().Desc(),
	}
}

// write returns a write from local memory at offset at to the same offset in peer's
// landing memory.
func (s *side) write(peer *side, kind fabric.Kind, tag uint32, at, size int) fabric.Op {
	op := s.op(kind, tag, at, size)
	op.Remote, op.Key = peer.landing.Region().Base()+uint64(at), peer.landing.Region().Key()
	return op
}

// post posts all of ops at once and reaps nothing.
func (s *side) post(ops ...fabric.Op) {
	s.t.Helper()
	posted, _, err := s.Exchange(ops, nil)
	require.NoError(s.t, err)
	require.Equal(s.t, len(ops), posted)
}

// poll polls steps times and returns what it has reaped.
func (s *side) poll(steps int) (all []fabric.Completion) {
	s.t.Helper()
	done := make([]fabric.Completion, 3)
	for range steps {
		_, reaped, err := s.Exchange(nil, done)
		require.NoError(s.t, err)
		all = append(all, done[:reaped]...)
	}
	return all
}

// tags returns the tags of completions, and the data of remote writes. None may have an error.
func tags(t testing.TB, all []fabric.Completion) (tags []uint32) {
	t.Helper()
	for _, c := range all {
		require.NoError(t, c.Err)
		if c.Kind == fabric.RemoteWrite {
			c.Tag = uint32(c.Data)
		}
		tags = append(tags, c.Tag)
	}
	return tags
}

var personalities = []Personality{
	Shm(), TCP(), Net(), Verbs(), EFA(), EFADirect(), CXI(), OPX(), PSM3(),
	RuleCQData(), RuleSendAfterWrite(), RuleDeliveryComplete(),
	{TxDepth: 1, RxDepth: 1, LocalMR: true, CQDataSize: 4},
}

// Whatever the personality, each message and each write arrives once and whole,
// and each operation completes once.
func TestTraffic(t *testing.T) {
	for i, p := range personalities {
		t.Run(fmt.Sprintf("%d %s", i, p.Provider), func(t *testing.T) {
			cfg := Config{Seed: uint64(i), Personality: p, Delay: 5, AgainRate: 0.2, CompletionReorder: true}
			n, a, b := pair(t, cfg)
			x := newTraffic(a, b, 300)
			for step := 0; x.busy(); step++ {
				require.Less(t, step, 100000, "traffic stands still")
				x.send()
				x.receive()
			}
			assert.True(t, bytes.Equal(a.local.Bytes()[:x.ops*64], b.landing.Bytes()[:x.ops*64]))
			s := n.Stats()
			assert.Positive(t, s.Refused)
			assert.Positive(t, s.WriteBytes)
			assert.Zero(t, s.InFlight+int(s.SendsWithoutReceive+s.CQOverruns+s.BadLocal+s.BadRemote))
			assert.EqualValues(t, x.ops, s.Sends)
		})
	}
}

// traffic writes ops blocks of 64 bytes from a to b and tells b of each.
type traffic struct {
	a, b        *side
	ops         int
	next        int  // block to write
	writing     bool // until the write's completion
	granted     int  // receives posted
	sent        int
	tell        []uint32 // blocks to send a message about
	inflight    int
	seen        map[uint32]int
	done        []fabric.Completion
	deliver     bool
	recvPending bool
}

func newTraffic(a, b *side, ops int) *traffic {
	x := &traffic{a: a, b: b, ops: ops, seen: make(map[uint32]int), done: make([]fabric.Completion, 4)}
	rng := rand.New(rand.NewPCG(7, 7))
	for i := range a.local.Bytes() {
		a.local.Bytes()[i] = byte(rng.Uint32())
	}
	x.deliver = a.Attr().DeliveryComplete
	return x
}

func (x *traffic) busy() bool { return len(x.seen) < x.ops || x.inflight > 0 }

// send writes one block at a time, with DeliveryComplete if that is offered.
func (x *traffic) send() {
	var ops []fabric.Op
	switch {
	case len(x.tell) > 0 && x.sent < x.granted:
		op := x.a.op(fabric.Send, x.tell[0], 60000, 4)
		if x.inflight == 0 {
			binary.LittleEndian.PutUint32(op.Buf, x.tell[0])
			ops = append(ops, op)
		}
	case !x.writing && len(x.tell) == 0 && x.next < x.ops:
		op := x.a.write(x.b, fabric.Write, uint32(x.next), 64*x.next, 64)
		op.Deliver = x.deliver
		ops = append(ops, op)
	}
	posted, reaped, err := x.a.Exchange(ops, x.done)
	require.NoError(x.a.t, err)
	if posted == 1 {
		x.inflight++
		if ops[0].Kind == fabric.Send {
			x.sent++
			x.tell = x.tell[1:]
		} else {
			x.writing = true
			x.next++
		}
	}
	for _, c := range x.done[:reaped] {
		require.NoError(x.a.t, c.Err)
		x.inflight--
		if c.Kind == fabric.Write {
			x.writing = false
			x.tell = append(x.tell, c.Tag)
		}
	}
}

// receive keeps one receive posted.
func (x *traffic) receive() {
	var ops []fabric.Op
	if !x.recvPending {
		ops = append(ops, x.b.op(fabric.Recv, 0, 0, 64))
	}
	posted, reaped, err := x.b.Exchange(ops, x.done)
	require.NoError(x.b.t, err)
	if posted == 1 {
		x.recvPending = true
		x.granted++
	}
	for _, c := range x.done[:reaped] {
		require.NoError(x.b.t, c.Err)
		require.Equal(x.b.t, fabric.Recv, c.Kind)
		require.Equal(x.b.t, 4, c.Len)
		x.recvPending = false
		block := binary.LittleEndian.Uint32(x.b.local.Bytes())
		x.seen[block]++
		require.Equal(x.b.t, 1, x.seen[block])
	}
}

// trace returns everything that both sides see of random traffic, as text.
func trace(t *testing.T, cfg Config) string {
	_, a, b := pair(t, cfg)
	rng := rand.New(rand.NewPCG(1, 1))
	var out bytes.Buffer
	done := make([]fabric.Completion, 2)
	for i := range 500 {
		at := 64 * rng.IntN(512)
		ops := []fabric.Op{a.op(fabric.Send, uint32(i), at, 64), a.write(b, fabric.Write, uint32(i), at, 64)}
		copy(ops[0].Buf, fmt.Sprint(i))
		for k, s := range []*side{a, b} {
			if k == 1 {
				ops = []fabric.Op{b.op(fabric.Recv, uint32(i), at, 64)}
			}
			posted, reaped, err := s.Exchange(ops, done)
			fmt.Fprintln(&out, k, posted, done[:reaped], err, string(bytes.Trim(b.local.Bytes()[at:at+8], "\x00")))
		}
	}
	return out.String()
}

func TestDeterminism(t *testing.T) {
	cfg := Config{Seed: 1, Delay: 7, AgainRate: 0.1, CompletionReorder: true, ErrRate: 0.05}
	first := trace(t, cfg)
	assert.Equal(t, first, trace(t, cfg))
	cfg.Seed = 2
	assert.NotEqual(t, first, trace(t, cfg))
}
