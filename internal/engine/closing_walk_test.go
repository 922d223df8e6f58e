package engine

import (
	"fmt"
	"math/rand"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/internal/race"
)

// lonelyCore returns a core without goroutines of its own.
func lonelyCore(t *testing.T) (*core, *simfabric.Network) {
	t.Helper()
	net := simfabric.New(simfabric.Config{Personality: simfabric.TCP()})
	fab, err := net.Open("tcp;ofi_rxm", netip.Addr{})
	require.NoError(t, err)
	c, err := newCore(fab, Config{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.shutdown() })
	return c, net
}

// alone returns as much of an Endpoint as c needs if only one goroutine uses it.
func alone(c *core) *Endpoint {
	if c.owner == nil {
		e := endpointOf(c)
		e.pause = func(*waiter) {}
	}
	return c.owner
}

// newPeerAlone makes a peer on such a core.
func newPeerAlone(c *core, token [16]byte, cfg PeerConfig) (*peer, error) {
	e := alone(c)
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.newPeer(token, cfg)
}

// carryOut carries out the orders of the core, as the endpoint's own goroutine otherwise does.
func (c *core) carryOut() {
	for o := c.nextOrder(); o != nil; o = c.nextOrder() {
		o.carryOut()
		c.supplied(o)
	}
}

// TestNoPeerOfABrokenEndpoint: an endpoint that breaks down while it takes a new peer does not
// count that peer, so that it does not look like one that is in use.
func TestNoPeerOfABrokenEndpoint(t *testing.T) {
	c, net := lonelyCore(t)
	net.Kill(c.fab, simfabric.DeathRefuse)
	_, err := newPeerAlone(c, [16]byte{1}, PeerConfig{})
	require.Error(t, err)
	require.Error(t, c.err)
	require.Empty(t, c.peers)
	require.Empty(t, c.order)
}

// side is one end of a conn whose frames and writes arrive in any order.
type side struct {
	name string
	c    *core
	p    *peer
	s    *stream
	data []*walkWrite
}

// walkWrite is an RDMA write: the other side may hear of it before or after it completes.
type walkWrite struct {
	pos           uint64
	arrived, done bool
}

// walkStep is something that may happen next.
type walkStep struct {
	name string
	do   func()
}

func newSide(t *testing.T, accept func(*Conn)) *side {
	c, _ := lonelyCore(t)
	p, err := newPeerAlone(c, [16]byte{1}, PeerConfig{Accept: func(conn *Conn, _ uint32) (uint16, framing.ResetCode) {
		accept(conn)
		return anyPort, 0
	}})
	require.NoError(t, err)
	return &side{c: c, p: p}
}

// deliver takes control frame i out of w's queue and hands it to o.
func deliver(w, o *side, i int) error {
	q := &w.p.ctl
	f := q.items[q.head+i]
	q.items = slices.Delete(q.items, q.head+i, q.head+i+1)
	h := framing.Header{Type: f.t, Flags: f.flags, Stream: f.stream, Pos: f.pos, Length: uint16(f.n)}
	_, err := o.p.handle(&h, f.payload[:f.n], 0)
	return err
}

// arrive tells o of one of w's writes. steps offers it only if no write before it is missing.
func (w *side) arrive(o *side, d *walkWrite) {
	d.arrived = true
	if s := o.s; s != nil && !s.gone() && !s.discarding() {
		s.rcvNxt += 10
		s.checkFin()
	}
}

func (w *side) steps(t *testing.T, o *side, trace *[]string, ending bool) (list []walkStep) {
	add := func(name string, do func()) { list = append(list, walkStep{w.name + ":" + name, do}) }
	for i, f := range w.p.ctl.items[w.p.ctl.head:] {
		add(fmt.Sprintf("frame %d flags %x", f.t, f.flags), func() { require.NoError(t, deliver(w, o, i), "%v", *trace) })
	}
	for _, d := range w.data {
		if s := o.s; !d.arrived && s != nil && (s.gone() || s.discarding() || s.rcvNxt == d.pos) {
			add(fmt.Sprint("data ", d.pos), func() { w.arrive(o, d) })
		}
	}
	s := w.s
	if s == nil {
		return list
	}
	for _, d := range w.data {
		if !d.done {
			add(fmt.Sprint("written ", d.pos), func() { d.done = true; s.writeDone(&txOp{}) })
		}
	}
	if !s.gone() && s.mayData() && !s.opening() && s.writing < 2 && !ending {
		add("write", func() {
			w.data = append(w.data, &walkWrite{pos: s.sndNxt})
			s.sndNxt += 10
			s.writing++
		})
	}
	switch {
	case s.opening():
		add("give up", s.close)
	case !s.closed():
		if !ending {
			add("CloseWrite", func() { s.shutWrite(false) })
			add("abort", s.abort)
		}
		add("Close", s.close)
	}
	if s.closed() && !s.gone() && !ending {
		add("unanswered", s.abort) // as checkCloses does
	}
	return list
}

// TestClosingWalk: in whatever order the calls, frames and writes of the two ends come, both ends
// are removed eventually, and neither while the other may still write to its ring.
func TestClosingWalk(t *testing.T) {
	var a, b *side
	a = newSide(t, func(*Conn) {})
	b = newSide(t, func(c *Conn) { b.s = c.stream })
	a.name, b.name = "A", "B"
	for seed := range int64(race.Fewer(30000)) {
		r := rand.New(rand.NewSource(seed))
		a.data, b.data, b.s = nil, nil, nil
		var err error
		a.s, err = a.p.open(7)
		require.NoError(t, err)
		var trace []string
		gaveUp := false
		most := 5 + r.Intn(40)
		for n := 0; ; n++ {
			all := append(a.steps(t, b, &trace, n > most), b.steps(t, a, &trace, n > most)...)
			if len(all) == 0 {
				break
			}
			next := all[r.Intn(len(all))]
			trace = append(trace, next.name)
			gaveUp = gaveUp || next.name == "A:give up"
			next.do()
			for _, pair := range [][2]*side{{a, b}, {b, a}} {
				w, o := pair[0], pair[1]
				if w.s != nil && w.s.gone() && o.s != nil && !gaveUp { // an end that gave up has granted nothing
					for _, d := range o.data {
						require.True(t, d.arrived || d.done, "seed %d side %s still writes: %v", seed, o.name, trace)
					}
					require.False(t, o.s.mayData(), "seed %d side %s may write: %v", seed, o.name, trace)
				}
			}
			require.Less(t, n, 10000, "%v", trace)
		}
		require.Empty(t, a.p.list, "seed %d: %v", seed, trace)
		require.Empty(t, b.p.list, "seed %d: %v", seed, trace)
		require.Zero(t, a.c.lingering)
		require.Zero(t, b.c.lingering)
		require.Zero(t, a.c.leases.out()+b.c.leases.out())
	}
}

// TestAcceptOvertaken: whatever overtakes the Accept of a stream, Open waits for the port that the Accept brings.
func TestAcceptOvertaken(t *testing.T) {
	for name, tt := range map[string]struct {
		end  func(s *stream)
		left bool // something can be read
	}{
		"nothing":    {func(*stream) {}, true},
		"a Fin":      {func(s *stream) { s.shutWrite(false) }, true},
		"a close":    {(*stream).close, true},
		"a reset":    {func(s *stream) { s.abort() }, false},
		"both kinds": {func(s *stream) { s.close(); s.abort() }, false},
	} {
		t.Run(name, func(t *testing.T) {
			var accepted *Conn
			gone := 0
			a := newSide(t, func(*Conn) {})
			b := newSide(t, func(c *Conn) { accepted = c; c.OnGone(func() { gone++ }) })
			s, err := a.p.open(7)
			require.NoError(t, err)
			require.NoError(t, deliver(a, b, 0))
			tt.end(accepted.stream)
			for i := b.p.ctl.len() - 1; i >= 0; i-- { // the last one first
				assert.True(t, s.unanswered())
				assert.Zero(t, s.port)
				require.NoError(t, deliver(b, a, i))
			}
			assert.False(t, s.unanswered())
			assert.EqualValues(t, anyPort, s.port)
			assert.Equal(t, tt.left, s.err == nil)
			s.close()
			accepted.stream.close()
			for from, to := a, b; a.p.ctl.len()+b.p.ctl.len() > 0; from, to = to, from {
				for from.p.ctl.len() > 0 {
					require.NoError(t, deliver(from, to, 0))
				}
			}
			assert.Equal(t, 1, gone)
		})
	}
}

// TestAcceptWithoutPort: an Accept without a port breaks the protocol.
func TestAcceptWithoutPort(t *testing.T) {
	a := newSide(t, func(*Conn) {})
	s, err := a.p.open(7)
	require.NoError(t, err)
	for _, payload := range [][]byte{nil, {0, 0}, {1, 2, 3}} {
		_, err = a.p.handle(&framing.Header{Type: framing.TypeAccept, Stream: s.id}, payload, 0)
		assert.ErrorIs(t, err, framing.ErrPayload)
		assert.True(t, s.unanswered())
	}
}

// TestMoves: the table of a stream's sending states is complete, never leads back, and always leads to an end.
func TestMoves(t *testing.T) {
	assert.Len(t, sendMoves, int(sendCut)+1, "a row for each state")
	ends := []sendState{sendClosed, sendCut}
	reached := map[sendState]bool{sendOpen: true}
	for s := sendOpen; s <= sendCut; s++ {
		ended := slices.Contains(ends, s)
		for e, next := range sendMoves[s] {
			to := s
			assert.Equal(t, next != sendOpen, to.move(sendEvent(e)), "event %d, from %d", e, s)
			if next == sendOpen {
				assert.Equal(t, s, to)
				continue
			}
			assert.Equal(t, next, to)
			assert.GreaterOrEqual(t, next, s, "event %d leads back from %d", e, s)
			assert.LessOrEqual(t, next, sendCut)
			reached[next] = true
			ended = ended || slices.Contains(ends, next)
		}
		assert.True(t, ended, "the end cannot be reached from %d", s)
	}
	for s := sendOpen; s <= sendCut; s++ {
		assert.True(t, reached[s], "state %d cannot be reached", s)
	}
}

// TestStreamStates: what the states mean for the users of both ends, after the events of a conn's life.
func TestStreamStates(t *testing.T) {
	type view struct{ mayData, closed, peerClosed, quiet, discarding bool }
	look := func(s *stream) view { return view{s.mayData(), s.closed(), s.peerClosed, s.quiet(), s.discarding()} }
	now := time.Unix(1e9, 0)
	for name, life := range map[string]struct {
		s    stream
		send []sendEvent
		want view
	}{
		"accepted":                        {want: view{mayData: true}},
		"half closed by us":               {send: []sendEvent{evCloseWrite, evAcked}},
		"half closed by the peer":         {s: stream{receiving: receiving{recv: recvEOF}}, want: view{mayData: true}},
		"closed by the peer":              {s: stream{peerClosed: true, receiving: receiving{recv: recvFin}}, want: view{peerClosed: true}},
		"closed, and not answered":        {s: stream{closedAt: now}, send: []sendEvent{evClose, evAcked}, want: view{closed: true, discarding: true}},
		"closed, and answered":            {s: stream{closedAt: now}, send: []sendEvent{evClose, evCloseAcked}, want: view{closed: true, quiet: true, discarding: true}},
		"given up, writes in flight":      {s: stream{closedAt: now}, send: []sendEvent{evAbort, evCloseAcked}, want: view{closed: true, discarding: true}},
		"given up, and answered":          {s: stream{closedAt: now}, send: []sendEvent{evAbort, evResetSent, evCloseAcked}, want: view{closed: true, quiet: true, discarding: true}},
		"reset by the peer, all received": {s: stream{peerClosed: true, receiving: receiving{recv: recvEOF}}, send: []sendEvent{evRefused}, want: view{peerClosed: true, quiet: true}},
		"removed":                         {s: stream{at: removed}, want: view{closed: true, discarding: true}},
	} {
		s := &life.s
		for _, e := range life.send {
			s.send.move(e)
		}
		assert.Equal(t, life.want, look(s), name)
	}
}

// TestClosedBeforeAccept: an Accept that comes late does not take back what overtook it.
func TestClosedBeforeAccept(t *testing.T) {
	c, _ := lonelyCore(t)
	p, err := newPeerAlone(c, [16]byte{1}, PeerConfig{})
	require.NoError(t, err)
	s, err := p.open(7)
	require.NoError(t, err)
	require.True(t, s.opening() && s.unanswered())
	require.NoError(t, s.finished(0, true))
	require.True(t, s.unanswered() && s.peerClosed)
	require.False(t, s.opening() || s.mayData())
	require.NoError(t, s.accepted([]byte{1, 0}))
	require.True(t, s.peerClosed)
	require.False(t, s.opening() || s.unanswered() || s.mayData())
}
