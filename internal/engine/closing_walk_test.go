package engine

import (
	"fmt"
	"math/rand"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/race"
)

// side is one end of a conn whose frames and writes arrive in any order.
type side struct {
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
	add := func(name string, do func()) { list = append(list, walkStep{name, do}) }
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
			add(fmt.Sprint("written ", d.pos), func() {
				d.done = true
				s.writeDone(&txOp{})
			})
		}
	}
	if !s.gone() && s.mayData() && !s.opening() && s.writing < 2 && !ending {
		add("write", func() {
			w.data = append(w.data, &walkWrite{pos: s.sndNxt})
			s.sndNxt += 10
			s.writing++
		})
	}
	if !s.closed() && !s.opening() {
		if !ending {
			add("CloseWrite", func() { s.shutWrite(false) })
			add("abort", func() { s.abort() })
		}
		add("Close", s.close)
	}
	if s.opening() {
		add("give up", s.close)
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
	for seed := range int64(race.Fewer(30000)) {
		r := rand.New(rand.NewSource(seed))
		a.data, b.data, b.s = nil, nil, nil
		var err error
		a.s, err = a.p.open(7)
		require.NoError(t, err)
		var trace []string
		gaveUp := false
		check := func() {
			for i, pair := range [][2]*side{{a, b}, {b, a}} {
				w, o := pair[0], pair[1]
				if w.s != nil && w.s.gone() && o.s != nil && !gaveUp { // an end that gave up has granted nothing
					for _, d := range o.data {
						require.True(t, d.arrived || d.done, "seed %d side %d still writes: %v", seed, 1-i, trace)
					}
					require.False(t, o.s.mayData(), "seed %d side %d may write: %v", seed, 1-i, trace)
				}
			}
		}
		most := 5 + r.Intn(40)
		for n := 0; ; n++ {
			ending := n > most
			as, bs := a.steps(t, b, &trace, ending), b.steps(t, a, &trace, ending)
			if len(as)+len(bs) == 0 {
				break
			}
			i := r.Intn(len(as) + len(bs))
			if i < len(as) {
				trace = append(trace, "A:"+as[i].name)
				gaveUp = gaveUp || as[i].name == "give up"
				as[i].do()
			} else {
				trace = append(trace, "B:"+bs[i-len(as)].name)
				bs[i-len(as)].do()
			}
			check()
			require.Less(t, n, 10000, "%v", trace)
		}
		require.Empty(t, a.p.list, "seed %d: %v", seed, trace)
		require.Empty(t, b.p.list, "seed %d: %v", seed, trace)
		require.Zero(t, a.c.lingering)
		require.Zero(t, b.c.lingering)
		require.Zero(t, a.c.leases.out()+b.c.leases.out())
	}
}
