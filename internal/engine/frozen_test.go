package engine

import (
	"encoding/binary"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
)

// TestManyFrozen: many stopped processes among the peers of an endpoint do not hold up the others,
// whatever waits to be sent to them.
func TestManyFrozen(t *testing.T) {
	holding := simfabric.TCP()
	holding.RxDepth, holding.TxDepth = 8192, 4096
	holding.Socket, holding.WeakCompletion = 64, false // 64 bytes are less than a frame
	for name, test := range map[string]struct {
		sim         simfabric.Personality
		frozen, all int
	}{
		"sends complete":    {simfabric.TCP(), 26, 27},
		"no send completes": {holding, 90, 96},
	} {
		t.Run(name, func(t *testing.T) {
			// Time is simulated: it passes only while everything stands still.
			synctest.Test(t, func(t *testing.T) {
				testManyFrozen(t, test.sim, test.frozen, test.all)
			})
		})
	}
}

func testManyFrozen(t *testing.T, sim simfabric.Personality, frozen, all int) {
	s := newStar(t, simfabric.Config{Seed: 1, Personality: sim}, Config{Spin: -1, DeadAfter: time.Hour}, all)
	defer s.close(t)
	a, b := s.dial(t, frozen)
	healthy(t, a, b)
	var conns, outers []*Conn
	each := make([][]*Conn, frozen)
	for spoke := range frozen {
		for range max(1, 64>>spoke) {
			outer, inner := s.dial(t, spoke)
			conns, outers = append(conns, inner), append(outers, outer)
			each[spoke] = append(each[spoke], inner)
		}
	}
	s.quiet()
	for spoke := range frozen {
		s.net.Freeze(s.spokes[spoke].fab)
	}
	var wg sync.WaitGroup
	for spoke := range frozen {
		for _, c := range each[spoke] {
			wg.Go(func() {
				for range 40 {
					if _, err := c.Write(make([]byte, 100)); err != nil {
						return
					}
				}
			})
		}
		s.quiet()
	}
	defer func() {
		for spoke := range frozen {
			s.net.Thaw(s.spokes[spoke].fab)
		}
		for _, c := range append(append(conns, outers...), a, b) {
			_ = c.SetLinger(0)
			_ = c.Close()
		}
		wg.Wait()
	}()
	healthy(t, a, b)
}

// miser is the endpoint of a process that never lets its peer have more than one slot.
type miser struct {
	fabric.Endpoint
	p *peer // nil: it is still generous
	c uint32
}

func (m *miser) Exchange(ops []fabric.Op, done []fabric.Completion) (int, int, error) {
	for _, op := range ops {
		if m.p != nil && (op.Kind == fabric.Send || op.Kind == fabric.Inject) {
			m.c = max(m.c, m.p.seen+1)
			binary.LittleEndian.PutUint32(op.Buf[20:], m.c)
		}
	}
	return m.Endpoint.Exchange(ops, done)
}

// TestMiser: a peer that answers heartbeats but grants one slot at a time, which is not enough for
// data, does not hold send slots for ever.
func TestMiser(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const dead = 5 * time.Second
		var m *miser
		l, err := newLinkOf(simfabric.Config{Seed: 1, Personality: simfabric.TCP()}, Config{Spin: -1, DeadAfter: dead, PeerSlots: 4}, func(e fabric.Endpoint) fabric.Endpoint {
			if m == nil {
				m = &miser{Endpoint: e}
				return m
			}
			return e
		})
		require.NoError(t, err)
		var in []*Conn
		for range 40 {
			_, b := l.dial(t)
			in = append(in, b)
		}
		time.Sleep(time.Second)
		locked(l.ea, func() { m.p, m.c = l.a.p, l.a.p.advertised })
		for _, b := range in {
			for range 4 {
				require.NoError(t, b.SetWriteDeadline(time.Now().Add(time.Millisecond)))
				_, _ = b.Write(make([]byte, 100))
			}
		}
		for i := range 12 {
			time.Sleep(dead / 3)
			l.a.Heartbeat(l.b.Sent())
			l.b.Heartbeat(l.a.Sent())
			if i == 3 {
				for _, b := range in {
					go func() { _ = b.Close() }()
				}
			}
		}
		l.eb.enter()
		assert.ErrorIs(t, l.b.p.err, ErrStarved)
		assert.Zero(t, l.eb.core.pends)
		assert.Equal(t, l.eb.core.tx.Len(), l.eb.core.tx.Free())
		l.eb.leave()
		l.end(t)
	})
}
