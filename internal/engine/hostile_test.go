package engine

import (
	"fmt"
	"net/netip"
	"reflect"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/pool"
)

const (
	hostileBudget   = 24 << 20
	hostileListener = 7
)

// scene is a core with two peers, in one goroutine and on virtual time: an honest one, which is a core too, and a
// hostile one, which is a bare endpoint that knows its token and sends what it likes.
type scene struct {
	t     testing.TB
	net   *simfabric.Network
	now   time.Time
	c     *core
	fab   *countingFabric
	done  [8]fabric.Completion
	conns []*Conn // that the hostile peer has opened
	opens []*stream
	lent  []*Buffer

	honest   *core
	toHonest *peer // at c
	toUs     *peer // at honest
	ends     [2]*honestEnd

	bad      *peer // at c: the hostile peer
	badFab   fabric.Endpoint
	badAddr  fabric.Addr // of c
	badToken [16]byte
	badMem   *pool.Slab
	badRing  *pool.Block // that others can map
	dead     bool
	deaf     bool // it takes nothing in
	maps     bool // peers map each other's rings

	badRecvs, meetings, floods int
}

// honestEnd is one end of the honest peer's stream.
type honestEnd struct {
	s         *stream
	sent, got uint64
}

// countingFabric counts the receives that are posted.
type countingFabric struct {
	fabric.Endpoint
	recvs int
}

func (f *countingFabric) Exchange(ops []fabric.Op, done []fabric.Completion) (posted, reaped int, err error) {
	posted, reaped, err = f.Endpoint.Exchange(ops, done)
	for _, op := range ops[:posted] {
		if isRecv(op) {
			f.recvs++
		}
	}
	for _, d := range done[:reaped] {
		if d.Kind == fabric.Recv {
			f.recvs--
		}
	}
	return posted, reaped, err
}

func newScene(t testing.TB, sim simfabric.Config) *scene {
	sc := &scene{t: t, net: simfabric.New(sim), now: time.Unix(1e9, 0), maps: sim.SameHost}
	sc.fab = &countingFabric{Endpoint: sc.open()}
	cfg := Config{Budget: pool.NewBudget(hostileBudget), Window: 16 << 10, MaxWindow: 64 << 10, Ring: 64 << 10, first: 16 << 10, PeerSlots: 16}
	var err error
	sc.c, err = newCore(sc.fab, cfg)
	require.NoError(t, err)
	alone(sc.c) // for Buffers
	cfg.Budget = pool.NewBudget(hostileBudget)
	sc.honest, err = newCore(sc.open(), cfg)
	require.NoError(t, err)
	sc.tick(0)

	var accepted *Conn
	sc.toHonest = sc.newPeer(sc.c, [16]byte{1}, func(c *Conn) { accepted = c })
	sc.toUs = sc.newPeer(sc.honest, [16]byte{2}, nil)
	connect(t, sc.toHonest, sc.toUs)
	connect(t, sc.toUs, sc.toHonest)
	s, err := sc.toUs.open(hostileListener)
	require.NoError(t, err)
	sc.until(func() bool { return accepted != nil && !s.opening() }, "the honest stream does not begin")
	sc.ends = [2]*honestEnd{{s: s}, {s: accepted.stream}}

	sc.badMem, err = pool.NewSlab(pool.NewBudget(0), nil, 128<<10, pool.AccessLocal)
	require.NoError(t, err)
	var ours *pool.Arena
	sc.badToken = [16]byte{4}
	ours, sc.badRing, err = sharedBlock(128<<10, sc.badToken)
	require.NoError(t, err)
	t.Cleanup(func() { _ = ours.Close() })
	sc.meetHostile()
	return sc
}

func (sc *scene) open() fabric.Endpoint {
	fe, err := sc.net.Open("sim", netip.Addr{})
	require.NoError(sc.t, err)
	return fe
}

// tick moves the clock on.
func (sc *scene) tick(d time.Duration) {
	sc.now = sc.now.Add(d)
	sc.c.at, sc.honest.at = sc.now, sc.now
}

func (sc *scene) newPeer(c *core, token [16]byte, accept func(*Conn)) *peer {
	cfg := PeerConfig{Accept: func(conn *Conn, listener uint32) (uint16, framing.ResetCode) {
		if accept == nil || listener != hostileListener {
			return 0, framing.ResetRefused
		}
		accept(conn)
		return anyPort, 0
	}}
	if sc.maps {
		cfg.Memory = opens(c.cfg.Budget)
	}
	p, err := newPeerAlone(c, token, cfg)
	require.NoError(sc.t, err)
	for i := 0; len(c.recvs) > 0; i++ {
		require.Less(sc.t, i, 1000)
		c.postRecvs()
	}
	return p
}

func connect(t testing.TB, p, o *peer) {
	addr, err := p.c.fab.Insert(o.c.fab.Name())
	require.NoError(t, err)
	require.NoError(t, p.attach(&framing.Attach{
		Peer: o.id, Token: o.token, Slots: uint32(o.c.slots), Eager: uint32(o.c.eager), Rule: uint32(o.c.rule),
	}, addr))
}

// meetHostile lets a hostile peer in, the first or the next.
func (sc *scene) meetHostile() {
	sc.meetings++
	sc.badFab, sc.dead, sc.badRecvs = sc.open(), false, 0
	sc.bad = sc.newPeer(sc.c, [16]byte{3, byte(sc.meetings)}, func(c *Conn) {
		if len(sc.conns) < 64 { // further ones stay open: nobody closes them
			sc.conns = append(sc.conns, c)
		}
	})
	addr, err := sc.c.fab.Insert(sc.badFab.Name())
	require.NoError(sc.t, err)
	require.NoError(sc.t, sc.bad.attach(&framing.Attach{
		Peer: 99, Token: sc.badToken, Slots: framing.MaxSlots, Eager: framing.MaxEager, Rule: uint32(sc.badRule()),
	}, addr))
	sc.badAddr, err = sc.badFab.Insert(sc.c.fab.Name())
	require.NoError(sc.t, err)
	if sc.c.attr.LocalMR {
		_, err = sc.badFab.Register(sc.badMem.Bytes(), pool.AccessLocal) // the first region has descriptor 1
		require.NoError(sc.t, err)
	}
}

// badRule is the rule by which the hostile peer says that its writes have landed.
func (sc *scene) badRule() Rule {
	switch size := sc.c.attr.CQDataSize; {
	case size >= proofSize:
		return byCQData
	case size >= 4:
		return byBareData
	}
	return bySAW
}

// poll gives a core a turn, in which it takes in at most n completions.
func (sc *scene) poll(c *core, n int) {
	_, n, err := c.fab.Exchange(nil, sc.done[:min(n, len(sc.done))])
	require.NoError(sc.t, err)
	c.retry()
	c.dispatch(sc.done[:n])
	c.carryOut()
	c.flush()
	c.rang = nil
}

// pollAll gives everybody a turn.
func (sc *scene) pollAll() {
	sc.poll(sc.c, 8)
	sc.poll(sc.honest, 8)
	sc.pollHostile(8)
}

// until gives everybody turns until it is over.
func (sc *scene) until(over func() bool, what string) {
	sc.t.Helper()
	for i := 0; !over(); i++ {
		require.Less(sc.t, i, 20_000, what)
		sc.pollAll()
	}
}

// pollHostile has the hostile peer take what has arrived, and post receives until there are recvs of them.
func (sc *scene) pollHostile(recvs int) {
	if sc.badFab == nil || sc.dead {
		return
	}
	var ops []fabric.Op
	for range max(0, recvs-sc.badRecvs) {
		ops = append(ops, fabric.Op{Kind: fabric.Recv, Buf: sc.badMem.Bytes()[:64<<10], Desc: 1})
	}
	posted, n, err := sc.badFab.Exchange(ops, sc.done[:])
	require.NoError(sc.t, err)
	sc.badRecvs += posted
	for _, d := range sc.done[:n] {
		if d.Kind == fabric.Recv {
			sc.badRecvs--
		}
	}
}

// sendHostile sends a frame.
func (sc *scene) sendHostile(frame []byte) {
	if sc.dead {
		return
	}
	buf := sc.badMem.Bytes()[64<<10:][:len(frame)]
	copy(buf, frame)
	sc.post(fabric.Op{Kind: fabric.Send, Buf: buf, Desc: 1})
}

// say sends a frame that carries the hostile peer's proof.
func (sc *scene) say(h framing.Header, payload []byte) {
	h.Peer, h.Proof, h.Length = sc.bad.id, sc.bad.proofIn, uint16(len(payload))
	sc.sendHostile(encoded(h, payload))
}

// encoded returns a frame.
func encoded(h framing.Header, payload []byte) []byte {
	return append(encode(framing.HeaderSize, &h), payload...)
}

// encode returns the size bytes of something.
func encode(size int, it interface{ Encode([]byte) }) []byte {
	b := make([]byte, size)
	it.Encode(b)
	return b
}

// post posts one of the hostile peer's operations, and lets it arrive before its memory is used again.
func (sc *scene) post(op fabric.Op) {
	if sc.dead {
		return
	}
	op.To = sc.badAddr
	for range 20 {
		posted, _, err := sc.badFab.Exchange([]fabric.Op{op}, sc.done[:])
		if posted > 0 || err != nil {
			break
		}
	}
	for range 8 {
		_, _, _ = sc.badFab.Exchange(nil, sc.done[:])
	}
}

// die ends the hostile peer's process.
func (sc *scene) die() {
	if !sc.dead {
		sc.dead = true
		sc.net.Kill(sc.badFab, simfabric.DeathError)
	}
}

func honestByte(pos uint64) byte { return byte(pos * 0x9e3779b97f4a7c15 >> 56) }

// move moves some of the honest stream's bytes in both directions and checks them.
func (sc *scene) move(n int) {
	for _, e := range sc.ends {
		b := make([]byte, n)
		for i := range b {
			b[i] = honestByte(e.sent + uint64(i))
		}
		require.NoError(sc.t, e.s.writeError(), "the honest stream")
		e.sent += uint64(writeSome(e.s, b))
		sc.take(e, b)
	}
}

// take reads what is there into b and checks it.
func (sc *scene) take(e *honestEnd, b []byte) {
	n, large := e.s.tryRead(b)
	if large != nil {
		n = copy(b, large)
		e.s.endCopy(n)
	}
	for i := range b[:n] {
		if b[i] != honestByte(e.got+uint64(i)) {
			require.FailNow(sc.t, "wrong byte in the honest stream", "at %d", e.got+uint64(i))
		}
	}
	e.got += uint64(n)
	if n == 0 {
		require.NoError(sc.t, e.s.conn.readError(), "the honest stream")
	}
	e.s.p.c.flush()
}

// check asserts what holds whatever a peer does.
func (sc *scene) check() {
	c := sc.c
	require.NoError(sc.t, c.err, "the endpoint")
	require.NoError(sc.t, sc.toHonest.err, "the honest peer")
	require.LessOrEqual(sc.t, c.cfg.Budget.Stats().Used, int64(hostileBudget))
	promised, held := 0, 0
	for _, p := range c.peers {
		promised += int(p.granted - p.seen)
		require.GreaterOrEqual(sc.t, p.known(), 0, "slots that it was told of")
		require.LessOrEqual(sc.t, p.ctl.len(), maxControl+8*max(64, len(p.streams)), "control frames")
		require.LessOrEqual(sc.t, len(p.out)-p.head, c.tx.Len()+c.stage.Len()+len(sc.lent)+64, "operations queued")
		require.LessOrEqual(sc.t, p.prepaid.len(), len(c.ops), "announcements")
		require.LessOrEqual(sc.t, p.dirty.len(), len(p.streams)+64)
		require.LessOrEqual(sc.t, p.pending.len(), len(p.streams)+64)
		for _, s := range p.streams {
			held += len(s.held)
			require.LessOrEqual(sc.t, s.smallIn, s.promised, "small data")
			require.LessOrEqual(sc.t, s.partsFor(s.promised-s.smallRead), s.parts, "memory for small data")
			require.LessOrEqual(sc.t, len(s.segs.q.items), 4096, "segments")
			if l := s.inLease; l != nil {
				require.LessOrEqual(sc.t, s.largeIn-max(s.largeRel, l.base), uint64(len(l.Ring.Bytes)), "large data")
				require.LessOrEqual(sc.t, l.unread.len(), framing.MaxWrites, "writes")
			}
			require.False(sc.t, s.inLease == nil && (s.oldLease != nil || s.nextLease != nil) || s.oldLease != nil && s.nextLease != nil, "rings")
			if s.recv.ends() {
				require.LessOrEqual(sc.t, s.rcvNxt, s.finPos, "the stream's end")
			}
		}
	}
	require.LessOrEqual(sc.t, promised, sc.fab.recvs+len(c.recvs))
	for p := range c.lost {
		for _, s := range p.streams {
			require.Empty(sc.t, s.held, "held frames of a peer that is lost")
		}
	}
	require.Equal(sc.t, c.rx.Len(), c.rx.Free()+sc.fab.recvs+len(c.recvs)+held, "receive slots: posted %d, to be posted %d, held %d", sc.fab.recvs, len(c.recvs), held)
	require.GreaterOrEqual(sc.t, c.lingering, 0)
	require.GreaterOrEqual(sc.t, c.lent, 0)
}

// finish ends the scene: the hostile peer goes, the honest one has lost nothing, and no memory is left over.
func (sc *scene) finish() {
	sc.die()
	c := sc.c
	sc.bad.doom(ErrEndpointClosed)
	c.flush()
	for _, b := range sc.lent {
		b.Release()
	}
	for _, s := range append(sc.opens, streamsOf(sc.conns)...) {
		if !s.closed() {
			s.close()
		}
	}
	c.flush()
	sc.check()
	for from, i := sc.ends[0].got, 0; sc.ends[0].got < from+40_000 || sc.ends[1].got < from+40_000; i++ {
		if i > 20_000 {
			require.FailNow(sc.t, "the honest stream is stuck", dumpPeer(c, sc.toHonest)+dumpPeer(sc.honest, sc.toUs))
		}
		sc.move(10_000)
		sc.pollAll()
	}
	for i := 0; sc.ends[0].got < sc.ends[1].sent || sc.ends[1].got < sc.ends[0].sent; i++ {
		require.Less(sc.t, i, 20_000, "the honest stream's last bytes")
		sc.pollAll()
		for _, e := range sc.ends {
			sc.take(e, make([]byte, 16<<10))
		}
	}
	sc.until(func() bool { return c.flying == 0 && len(sc.toHonest.out) == 0 }, "operations do not end")
	sc.check()
	require.Empty(sc.t, c.lost, "lost peers with streams")
	require.Equal(sc.t, c.tx.Len(), c.tx.Free(), "send slots")
	require.Equal(sc.t, c.stage.Len(), c.stage.Free(), "staging chunks")
	require.Zero(sc.t, c.lent, "Buffers")
	require.Zero(sc.t, c.blocked)
	for _, e := range sc.ends {
		e.s.close()
		e.s.p.c.flush()
	}
	sc.until(func() bool { return len(sc.toHonest.streams)+len(sc.toUs.streams) == 0 }, "the honest stream does not end")
	require.Zero(sc.t, c.lingering)
	require.Zero(sc.t, c.leases.out(), "leases")
	for _, c := range []*core{c, sc.honest} {
		c.breakdown(ErrEndpointClosed)
		c.flush()
		require.NoError(sc.t, c.shutdown())
		require.Zero(sc.t, c.cfg.Budget.Stats().Used+c.cfg.Budget.Stats().Foreign, "memory budget, and that of others")
	}
	require.NoError(sc.t, sc.badMem.Close())
}

func streamsOf(conns []*Conn) (list []*stream) {
	for _, c := range conns {
		list = append(list, c.stream)
	}
	return list
}

// snapshot describes a core's state without its memory's contents and what dropping a frame may change, as its counters.
func snapshot(c *core) string {
	var b strings.Builder
	w := stateWriter{out: &b, seen: map[any]int{}}
	w.write(reflect.ValueOf(c), "core")
	return b.String()
}

type stateWriter struct {
	out  *strings.Builder
	seen map[any]int
}

func (w *stateWriter) write(v reflect.Value, path string) {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return
		}
		if n, ok := w.seen[v.UnsafePointer()]; ok {
			fmt.Fprintf(w.out, "%s=>%d\n", path, n)
			return
		}
		w.seen[v.UnsafePointer()] = len(w.seen)
		w.write(v.Elem(), path)
	case reflect.Struct:
		if strings.HasPrefix(v.Type().PkgPath(), "sync") || v.Type() == reflect.TypeFor[time.Time]() {
			return
		}
		for i := range v.NumField() {
			switch name := v.Type().Field(i).Name; name {
			// Dropping a frame may change these: its slot is posted again.
			case "fab", "owner", "recvs", "owners", "ready", "urgent", "batch", "FramesDropped", "CQErrors", "Reaped", "conn", "failing", "recvsRefused", "Retries", "Polls", "pollsFull":
			default:
				w.write(v.Field(i), path+"."+name)
			}
		}
	case reflect.Slice, reflect.Array:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return
		}
		fmt.Fprintf(w.out, "%s: %d\n", path, v.Len())
		for i := range v.Len() {
			w.write(v.Index(i), fmt.Sprintf("%s[%d]", path, i))
		}
	case reflect.Map:
		fmt.Fprintf(w.out, "%s: %d\n", path, v.Len())
		if v.Type().Key().Kind() == reflect.Pointer {
			return // unordered
		}
		keys := v.MapKeys()
		sort.Slice(keys, func(i, j int) bool { return fmt.Sprint(keys[i]) < fmt.Sprint(keys[j]) })
		for _, k := range keys {
			w.write(v.MapIndex(k), fmt.Sprintf("%s[%v]", path, k))
		}
	case reflect.Interface, reflect.Chan, reflect.Func, reflect.UnsafePointer:
	default:
		fmt.Fprintf(w.out, "%s=%v\n", path, v)
	}
}
