package engine

import (
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/pool"
)

var (
	seedFlag  = flag.Uint64("seed", 0, "run the model test with this seed only")
	seedsFlag = flag.Int("seeds", 200, "how many seeds the model test runs")
)

// TestModel drives two state machines over a simulated fabric in one goroutine
// and on virtual time, with random calls in random order, and checks every
// byte. A seed replays exactly.
func TestModel(t *testing.T) {
	if *seedFlag != 0 {
		runModel(t, *seedFlag)
		return
	}
	for seed := uint64(1); seed <= uint64(*seedsFlag); seed++ {
		if !t.Run(fmt.Sprint(seed), func(t *testing.T) { runModel(t, seed) }) {
			t.Fatalf("replay with: go test ./internal/engine -run TestModel -seed %d", seed)
		}
	}
}

type model struct {
	t     *testing.T
	rng   *rand.Rand
	net   *simfabric.Network
	cores [2]*core
	peers [2]*peer
	ends  []*modelEnd
	rude  bool // ends are closed and reset at any moment
	now   time.Time
	done  [8]fabric.Completion
}

// modelEnd is one end of a stream and what it should see.
type modelEnd struct {
	s         *stream
	other     *modelEnd
	sent, got uint64
	toSend    uint64
	eof, fin  bool
	closed    bool
	early     bool // closed before both directions had ended
	aborted   bool
}

func (m *model) pattern(e *modelEnd, pos uint64) byte {
	x := (pos + uint64(e.s.id)<<40) * 0x9e3779b97f4a7c15
	return byte(x >> 56)
}

func randomSim(rng *rand.Rand, seed uint64) simfabric.Config {
	pick := func(n ...int) int { return n[rng.IntN(len(n))] }
	ps := []simfabric.Personality{
		simfabric.RuleCQData(), simfabric.RuleSendAfterWrite(), simfabric.RuleDeliveryComplete(),
		simfabric.Shm(), simfabric.TCP(), simfabric.EFA(), simfabric.Verbs(), {},
	}
	p := ps[rng.IntN(len(ps))]
	p.Provider = "sim"
	p.InjectSize = pick(0, 64, 256, 4096)
	p.TxDepth = pick(1, 2, 8, 256)
	p.RxDepth = pick(4, 8, 64, 1024)
	p.NoWait = false
	if rng.IntN(4) == 0 {
		p.MaxMsgSize = uint64(pick(200, 4096, 8192))
	}
	return simfabric.Config{
		Seed: seed, Personality: p, Delay: pick(0, 1, 5, 20),
		AgainRate: float64(pick(0, 0, 10, 50)) / 100, CompletionReorder: rng.IntN(2) == 0,
	}
}

func runModel(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 7))
	sim := randomSim(rng, seed)
	m := &model{t: t, rng: rng, net: simfabric.New(sim), now: time.Unix(1e9, 0), rude: rng.IntN(3) == 0}
	cfg := Config{
		Budget:    pool.NewBudget(64 << 20),
		Window:    4 << 10 << rng.IntN(5),
		Ring:      64 << 10 << rng.IntN(5),
		PeerSlots: 4 << rng.IntN(5),
	}
	accepted := map[uint32]*Conn{}
	for i := range m.cores {
		fe, err := m.net.Open("sim", netip.Addr{})
		require.NoError(t, err)
		m.cores[i], err = newCore(fe, cfg)
		require.NoError(t, err)
		m.cores[i].at = m.now
		m.peers[i], err = m.cores[i].newPeer([16]byte{byte(i), 9}, PeerConfig{
			Accept: func(c *Conn, _ uint32) framing.ResetCode { accepted[c.stream.id] = c; return 0 },
		})
		require.NoError(t, err)
		for len(m.cores[i].recvs) > 0 { // what a peer is granted must be posted
			m.cores[i].postRecvs()
		}
	}
	for i, p := range m.peers {
		o := m.peers[1-i]
		addr, err := m.cores[i].fab.Insert(o.c.fab.Name())
		require.NoError(t, err)
		require.NoError(t, p.attach(&framing.Attach{
			Peer: o.id, Token: o.token, Slots: uint32(o.slots), Eager: uint32(o.c.eager),
		}, addr))
		if rng.IntN(2) == 0 { // writes may be held back
			p.bell.Own = new(atomic.Uint32)
		}
	}
	for range 1 + rng.IntN(5) {
		s, err := m.peers[0].open(1)
		require.NoError(t, err)
		for i := 0; accepted[s.id] == nil || s.opening; i++ {
			require.Less(t, i, 10000, "stream does not open")
			m.poll()
		}
		a, b := &modelEnd{s: s}, &modelEnd{s: accepted[s.id].stream}
		a.other, b.other = b, a
		most := 1 << 20
		if sim.MaxMsgSize > 0 { // every byte costs many more steps
			most = 1 << 17
		}
		a.toSend, b.toSend = uint64(rng.IntN(most)), uint64(rng.IntN(1<<rng.IntN(18)))
		m.ends = append(m.ends, a, b)
	}
	m.run()
	for i, c := range m.cores {
		require.Empty(t, m.peers[i].streams, "streams left")
		require.Zero(t, c.lingering)
		require.Zero(t, c.leases.Stats().Out, "leases out")
		c.breakdown(ErrEndpointClosed)
		require.NoError(t, c.shutdown())
	}
	require.Zero(t, cfg.Budget.Stats().Used, "memory budget")
	require.Zero(t, m.net.Stats().SendsWithoutReceive)
	require.Empty(t, m.net.Stats().Misuse)
	require.Zero(t, m.cores[0].stats.Violations+m.cores[1].stats.Violations)
	// If completions are reaped in any order, the frame that gives a ring back
	// can come before the completion data of a write that has long landed.
	if stray := m.cores[0].stats.WritesStray + m.cores[1].stats.WritesStray; !sim.CompletionReorder {
		require.Zero(t, stray, "writes into rings that were taken back: %+v", sim)
	}
	require.Zero(t, m.net.Stats().BadRemote)
}

func (m *model) poll() {
	c := m.cores[m.rng.IntN(2)]
	if m.rng.IntN(50) == 0 {
		m.now = m.now.Add(time.Duration(m.rng.IntN(300)) * time.Millisecond)
		c.at = m.now
		c.chores()
	}
	c.at = m.now
	_, n, err := c.fab.Exchange(nil, m.done[:1+m.rng.IntN(len(m.done))])
	require.NoError(m.t, err)
	c.retry()
	c.dispatch(m.done[:n])
	c.rang = c.rang[:0]
}

func (m *model) run() {
	left := len(m.ends)
	for step, last := 0, 0; left > 0; step++ {
		if m.rng.IntN(3) == 0 {
			m.poll()
			continue
		}
		e := m.ends[m.rng.IntN(len(m.ends))]
		if e.closed {
			continue
		}
		if m.rude && m.rng.IntN(300) == 0 {
			e.early = true
			if e.aborted = m.rng.IntN(2) == 0; e.aborted {
				e.s.abort(framing.ResetAbort)
			} else {
				e.s.close()
			}
			e.s.p.c.flush()
			e.closed = true
			left--
			last = step
			continue
		}
		moved := m.write(e) + m.read(e)
		if !e.fin && e.sent == e.toSend {
			e.s.shutWrite(false)
			e.s.p.c.flush()
			e.fin = true
			moved++
		}
		if e.fin && e.eof {
			e.s.close()
			e.s.p.c.flush()
			e.closed = true
			left--
			moved++
		}
		if moved > 0 {
			last = step
		}
		if step-last > 200_000 {
			require.FailNow(m.t, "stalled", m.dump())
		}
	}
	for i := 0; len(m.peers[0].streams)+len(m.peers[1].streams) > 0; i++ {
		if i > 100_000 {
			require.FailNow(m.t, "streams do not end", m.dump())
		}
		m.poll()
	}
	for i := 0; m.cores[0].flying+m.cores[1].flying > 0; i++ {
		require.Less(m.t, i, 100_000, "operations do not end")
		m.poll()
	}
}

func (m *model) write(e *modelEnd) int {
	if e.sent == e.toSend || m.rng.IntN(2) == 0 {
		return 0
	}
	b := make([]byte, min(e.toSend-e.sent, uint64(1+m.rng.IntN(1<<m.rng.IntN(18)))))
	for i := range b {
		b[i] = m.pattern(e, e.sent+uint64(i))
	}
	if err := e.s.writeError(); err != nil {
		require.True(m.t, e.other.early, "writing: %v", err)
		e.toSend, e.fin = e.sent, true
		return 1
	}
	n := e.s.fill(b)
	if n == 0 {
		if src := e.s.prepareLarge(len(b)); src.mem != nil {
			copy(src.mem, b)
			if m.rng.IntN(2) == 0 {
				m.poll() // the copy is made without the lock
			}
			if n = len(src.mem); e.s.writeError() != nil || !e.s.commitLarge(src, len(b)) {
				e.s.p.putStage(src.slot)
				n = 0
			}
		} else {
			n = e.s.writeFrames(b)
		}
	}
	clear(b)
	e.s.p.c.flush()
	e.sent += uint64(n)
	return n
}

func (m *model) read(e *modelEnd) int {
	if e.eof || m.rng.IntN(2) == 0 {
		return 0
	}
	b := make([]byte, 1+m.rng.IntN(1<<m.rng.IntN(17)))
	n, large := e.s.tryRead(b)
	if large != nil {
		n = copy(b, large)
		e.s.endCopy(n)
	}
	for i := range b[:n] {
		if want := m.pattern(e.other, e.got+uint64(i)); b[i] != want {
			require.FailNow(m.t, "wrong byte", "stream %d position %d: %#x, want %#x\n%s", e.s.id, e.got+uint64(i), b[i], want, m.dump())
		}
	}
	e.got += uint64(n)
	if err := e.s.endError(); n == 0 && err != nil {
		if e.other.aborted {
			require.LessOrEqual(m.t, e.got, e.other.sent)
		} else {
			require.Equal(m.t, e.other.sent, e.got)
			require.Equal(m.t, io.EOF, err)
		}
		e.eof = true
		n = 1
	}
	e.s.p.c.flush()
	return n
}

func (m *model) dump() string {
	out := fmt.Sprintf("rule %d attr %+v\n", m.cores[0].rule, m.cores[0].attr)
	for i, p := range m.peers {
		out += dumpPeer(m.cores[i], p)
	}
	for _, e := range m.ends {
		out += fmt.Sprintf("end %d: sent %d/%d got %d fin %v eof %v closed %v\n", e.s.id, e.sent, e.toSend, e.got, e.fin, e.eof, e.closed)
	}
	return out
}

func dumpPeer(c *core, p *peer) string {
	out := fmt.Sprintf("flying %d/%d tx free %d/%d stage %d/%d recvs %d blocked %d; peer slots %d granted %d told %d seen %d avail %d out %d prepaid %d ctl %d pending %d dirty %d err %v\n%+v\n",
		c.flying, c.depth, c.tx.Free(), c.tx.Len(), c.stage.Free(), c.stage.Len(), len(c.recvs), c.blocked,
		p.slots, p.granted, p.told, p.seen, p.avail(), len(p.out)-p.head, len(p.prepaid), len(p.ctl), len(p.pending), len(p.dirty), p.err, c.stats)
	for _, s := range p.streams {
		out += fmt.Sprintf("  stream %d out: next %d small %d/%d large %d/%d pend %+v lease %v asked %v/%v writing %d fin %v/%v acked %v waiting %v\n",
			s.id, s.sndNxt, s.smallOut, s.smallMax, s.largeOut, s.largeMax, s.pend, s.outLease != nil, s.asked, s.askData, s.writing, s.finSent, s.finClosed, s.acked, s.wr.waiting)
		out += fmt.Sprintf("  stream %d in: next %d small %d/%d large %d/%d segs %v held %d lease %v wanting %v fin %v at %d eof %v remote %v owed %v closed %v err %v waiting %v\n",
			s.id, s.rcvNxt, s.smallRead, s.smallIn, s.largeRel, s.largeIn, !s.segs.empty(), len(s.held), s.inLease != nil, s.wanting, s.finKnown, s.finPos, s.eof, s.remote, s.owed, s.closed, s.err, s.rd.waiting)
	}
	return out
}
