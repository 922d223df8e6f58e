package simfabric

import (
	"bytes"
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/pool"
)

// Each order is kept if it is promised, and sometimes broken if not.
func TestOrder(t *testing.T) {
	tests := map[string]struct {
		kinds [2]fabric.Kind // of even and odd operations
		kept  fabric.Order
	}{
		"send after send":   {[2]fabric.Kind{fabric.Send, fabric.Send}, fabric.SendAfterSend},
		"send after write":  {[2]fabric.Kind{fabric.WriteData, fabric.Send}, fabric.SendAfterWrite},
		"write after write": {[2]fabric.Kind{fabric.WriteData, fabric.WriteData}, fabric.WriteAfterWrite},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			for _, order := range []fabric.Order{allOrders, allOrders &^ tt.kept, tt.kept, 0} {
				for _, delay := range []int{0, 6} {
					broken := 0
					for seed := range uint64(20) {
						broken += overtakes(t, Config{
							Seed: seed, Delay: delay, Personality: Personality{Order: order, CQDataSize: 4},
						}, tt.kinds)
					}
					if order&tt.kept != 0 {
						assert.Zero(t, broken, "order %b, delay %d", order, delay)
					} else {
						assert.Positive(t, broken, "order %b, delay %d", order, delay)
					}
				}
			}
		})
	}
}

// overtakes counts pairs of an operation and the next one that arrive the wrong
// way round.
func overtakes(t *testing.T, cfg Config, kinds [2]fabric.Kind) (count int) {
	const ops = 6
	_, a, b := pair(t, cfg)
	var send, recv []fabric.Op
	for i := range ops {
		a.local.Bytes()[64*i] = byte(i)
		op := a.op(fabric.Send, uint32(i), 64*i, 1)
		if kinds[i%2] == fabric.WriteData {
			op = a.write(b, fabric.WriteData, uint32(i), 64*i, 1)
		}
		send = append(send, op)
		recv = append(recv, b.op(fabric.Recv, uint32(i), 64*i, 1))
	}
	b.post(recv...)
	a.post(send...)
	var arrived []uint32
	for _, c := range b.poll(20) {
		require.NoError(t, c.Err)
		if c.Kind == fabric.RemoteWrite {
			arrived = append(arrived, uint32(c.Data))
		} else {
			arrived = append(arrived, uint32(b.local.Bytes()[64*c.Tag]))
		}
	}
	require.Len(t, arrived, ops)
	at := func(i int) int { return slices.Index(arrived, uint32(i)) }
	for i := 0; i+1 < ops; i += 2 {
		if at(i) > at(i+1) {
			count++
		}
	}
	return count
}

// A weak completion says nothing about the bytes. The others come when the bytes have arrived.
func TestCompletionMeaning(t *testing.T) {
	tests := map[string]struct {
		weak, deliver, early bool
	}{
		"strong":           {},
		"weak":             {weak: true, early: true},
		"weak but deliver": {weak: true, deliver: true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			early := false
			for seed := range uint64(20) {
				p := Personality{WeakCompletion: tt.weak, DeliveryComplete: true}
				_, a, b := pair(t, Config{Seed: seed, Delay: 6, Personality: p})
				a.local.Bytes()[0] = 1
				op := a.write(b, fabric.Write, 1, 0, 1)
				op.Deliver = tt.deliver
				a.post(op)
				for len(a.poll(1)) == 0 {
				}
				early = early || b.landing.Bytes()[0] == 0
				a.local.Bytes()[0] = 2 // the source may be reused
				a.poll(20)
				require.EqualValues(t, 1, b.landing.Bytes()[0])
			}
			assert.Equal(t, tt.early, early)
		})
	}
}

func TestBufferReusedTooEarly(t *testing.T) {
	_, a, b := pair(t, Config{Delay: 50, Personality: Personality{InjectSize: 8}})
	b.post(b.op(fabric.Recv, 0, 0, 8), b.op(fabric.Recv, 1, 8, 8))
	buf := a.local.Bytes()[:1]
	buf[0] = 1
	a.post(a.op(fabric.Inject, 0, 0, 1))
	b.poll(60)
	require.EqualValues(t, 1, b.local.Bytes()[0])
	corrupt := false
	for range 20 {
		buf[0] = 1
		a.post(a.op(fabric.Send, 0, 0, 1))
		buf[0] = 2
		for _, c := range b.poll(60) {
			corrupt = corrupt || b.local.Bytes()[8*c.Tag] == 2
			b.post(b.op(fabric.Recv, c.Tag, 8*int(c.Tag), 8))
		}
		require.Len(t, a.poll(1), 1, "an inject has no completion, a send has one")
	}
	assert.True(t, corrupt)
}

func TestWriteLandsInPieces(t *testing.T) {
	seen := make(map[string]bool)
	for seed := range uint64(20) {
		_, a, b := pair(t, Config{Seed: seed, Delay: 6})
		copy(a.local.Bytes(), "ab")
		a.post(a.write(b, fabric.Write, 0, 0, 2))
		for range 20 {
			seen[string(bytes.Trim(b.landing.Bytes()[:2], "\x00"))] = true
			a.poll(1)
		}
	}
	assert.Equal(t, map[string]bool{"": true, "a": true, "b": true, "ab": true}, seen)
}

func TestPostErrors(t *testing.T) {
	n, a, b := pair(t, Config{Personality: Personality{InjectSize: 8, MaxMsgSize: 100, MaxRMASize: 200}})
	deliver := a.write(b, fabric.Write, 0, 0, 1)
	deliver.Deliver = true
	nowhere := a.op(fabric.Send, 0, 0, 1)
	nowhere.To = 7
	for name, bad := range map[string]fabric.Op{
		"long inject": a.op(fabric.Inject, 0, 0, 9),
		"long send":   a.op(fabric.Send, 0, 0, 101),
		"long write":  a.write(b, fabric.Write, 0, 0, 201),
		"data":        a.write(b, fabric.WriteData, 0, 0, 1),
		"deliver":     deliver,
		"address":     nowhere,
		"kind":        {},
	} {
		good := a.write(b, fabric.Write, 0, 0, 200)
		posted, reaped, err := a.Exchange([]fabric.Op{good, bad, good}, make([]fabric.Completion, 8))
		require.ErrorIs(t, err, ErrInvalid, name)
		assert.Equal(t, []int{1, 1}, []int{posted, reaped}, name)
	}
	require.NoError(t, a.Remove(a.to))
	require.ErrorIs(t, a.Remove(a.to), ErrInvalid)
	_, _, err := a.Exchange([]fabric.Op{a.op(fabric.Send, 0, 0, 1)}, nil)
	require.ErrorIs(t, err, ErrInvalid)
	_, err = a.Insert([]byte("nonsense"))
	require.ErrorIs(t, err, ErrInvalid)
	assert.Zero(t, n.Stats().InFlight)
}

func TestDepths(t *testing.T) {
	n, a, b := pair(t, Config{Personality: Personality{TxDepth: 2, RxDepth: 3, InjectSize: 8, CQDataSize: 4}})
	recv := slices.Repeat([]fabric.Op{b.op(fabric.Recv, 0, 0, 8)}, 5)
	posted, _, err := b.Exchange(recv, nil)
	require.NoError(t, err)
	assert.Equal(t, 3, posted)
	send := slices.Repeat([]fabric.Op{a.op(fabric.Send, 0, 0, 8)}, 5)
	for round := range 2 { // a slot is free again once its completion is reaped
		posted, _, err = a.Exchange(send, nil)
		require.NoError(t, err)
		assert.Equal(t, 2, posted)
		assert.Len(t, a.poll(2), 2-round, "the fourth meets no receive")
	}
	assert.EqualValues(t, 1, n.Stats().SendsWithoutReceive)
	assert.Len(t, b.poll(2), 3)
	b.post(recv[0])
	assert.Len(t, b.poll(2), 1)
	for range 6 {
		a.post(a.write(b, fabric.WriteData, 0, 0, 8))
		a.poll(1)
	}
	assert.EqualValues(t, 1, n.Stats().CQOverruns)

	a.post(slices.Repeat([]fabric.Op{a.op(fabric.Inject, 0, 0, 8)}, 2)...)
	posted, _, err = a.Exchange(send, nil)
	require.NoError(t, err)
	assert.Zero(t, posted, "injects that wait take room too")
	b.poll(4)
	b.post(b.op(fabric.Recv, 0, 0, 8), b.op(fabric.Recv, 0, 0, 4)) // one is too short
	var errs []error
	for _, c := range b.poll(2) {
		errs = append(errs, c.Err)
	}
	require.Len(t, errs, 2)
	require.ErrorIs(t, errors.Join(errs...), ErrTruncated)
	assert.EqualValues(t, 1, n.Stats().Truncated)
}

func TestLocalRegistration(t *testing.T) {
	n, a, b := pair(t, Config{Delay: 4, Personality: Personality{LocalMR: true}})
	alien := a.op(fabric.Send, 1, 0, 8)
	alien.Buf = make([]byte, 8)
	wrong := a.op(fabric.Send, 2, 0, 8)
	wrong.Desc++
	zero := a.op(fabric.Recv, 3, 0, 8)
	zero.Desc = 0
	a.post(alien, wrong, zero)
	got := a.poll(8)
	require.Len(t, got, 3)
	for _, c := range got {
		require.ErrorIs(t, c.Err, ErrLocalAccess)
	}
	assert.EqualValues(t, 3, n.Stats().BadLocal)
	// Memory that is deregistered while operations on it are in flight.
	a.post(slices.Repeat([]fabric.Op{a.write(b, fabric.Write, 0, 0, 8)}, 5)...)
	require.NoError(t, a.local.Deregister())
	a.poll(12)
	assert.Greater(t, n.Stats().BadLocal, uint64(3))

	_, a, b = pair(t, Config{})
	b.post(b.op(fabric.Recv, 0, 0, 8))
	free := a.op(fabric.Send, 1, 0, 8)
	free.Buf = make([]byte, 8)
	a.post(free)
	assert.Equal(t, []uint32{1}, tags(t, a.poll(2)))
}

// A write that the target does not allow changes nothing there. Whether the
// writer gets an error depends on the provider.
func TestRemoteAccess(t *testing.T) {
	for _, p := range []Personality{{}, {VirtAddr: true}, {WeakCompletion: true}} {
		n, a, b := pair(t, Config{Personality: p})
		copy(a.local.Bytes(), "attack")
		good := a.write(b, fabric.Write, 0, 0, 6)
		bad := slices.Repeat([]fabric.Op{good}, 6)
		bad[0].Key++
		bad[1].Remote += slabSize - 5
		bad[2].Remote--
		bad[3].Remote = 1<<64 - 3
		bad[4].Key, bad[4].Remote = b.local.Region().Key(), b.local.Region().Base()
		bad[5].Remote += slabSize + 1
		a.post(bad...)
		got := a.poll(4)
		require.Len(t, got, len(bad))
		for _, c := range got {
			if p.WeakCompletion {
				require.NoError(t, c.Err)
			} else {
				require.ErrorIs(t, c.Err, ErrRemoteAccess)
			}
		}
		zeroes := make([]byte, slabSize)
		assert.True(t, bytes.Equal(zeroes, b.landing.Bytes()))
		assert.True(t, bytes.Equal(zeroes, b.local.Bytes()))
		assert.EqualValues(t, len(bad), n.Stats().BadRemote)

		require.NoError(t, b.landing.Deregister())
		a.post(good)
		a.poll(2)
		assert.True(t, bytes.Equal(zeroes, b.landing.Bytes()), "the key is void")
	}
}

func TestRefusals(t *testing.T) {
	n, a, b := pair(t, Config{AgainRate: 0.3})
	refused, burst, longest := 0, 0, 0
	for range 500 {
		posted, _, err := a.Exchange([]fabric.Op{a.write(b, fabric.Write, 0, 0, 1)}, make([]fabric.Completion, 2))
		require.NoError(t, err)
		if posted == 1 {
			burst = 0
			continue
		}
		refused++
		burst++
		longest = max(longest, burst)
	}
	assert.EqualValues(t, refused, n.Stats().Refused)
	assert.Greater(t, longest, 2)
	assert.Less(t, refused, 450)
}

func TestErrors(t *testing.T) {
	n, a, b := pair(t, Config{ErrRate: 0.3})
	failed := 0
	for range 200 {
		a.post(a.write(b, fabric.Write, 0, 0, 1))
		for _, c := range a.poll(1) {
			if c.Err != nil {
				require.ErrorIs(t, c.Err, ErrInjected)
				failed++
			}
		}
	}
	assert.Greater(t, failed, 20)
	assert.EqualValues(t, failed, n.Stats().Failed)

	n, a, b = pair(t, Config{})
	errTest := errors.New("test")
	n.Fail(a, fabric.Write, errTest)
	n.Fail(a, 0, errTest)
	a.post(a.op(fabric.Recv, 1, 0, 1), a.write(b, fabric.Write, 2, 0, 1), a.write(b, fabric.Write, 3, 0, 1))
	assert.Equal(t, []fabric.Completion{{Err: errTest}, {Kind: fabric.Write, Tag: 2, Err: errTest}, {Kind: fabric.Write, Tag: 3}}, a.poll(2))
}

func TestCompletionReorder(t *testing.T) {
	for _, reorder := range []bool{false, true} {
		_, a, b := pair(t, Config{CompletionReorder: reorder})
		var want []uint32
		for i := range uint32(10) {
			a.post(a.write(b, fabric.Write, i, 0, 1))
			want = append(want, i)
		}
		got := tags(t, a.poll(10))
		assert.ElementsMatch(t, want, got)
		assert.Equal(t, !reorder, slices.Equal(want, got))
	}
}

func TestKill(t *testing.T) {
	tests := map[Death]struct{ inFlight, later, posted int }{
		DeathError:  {1, 1, 1},
		DeathSilent: {0, 0, 1},
		DeathRefuse: {1, 0, 0},
	}
	for how, tt := range tests {
		n, a, b := pair(t, Config{})
		a.post(a.op(fabric.Send, 1, 0, 8)) // no receive: stays in flight
		copy(b.local.Bytes(), "late")
		b.post(b.op(fabric.Send, 1, 0, 8))
		n.Kill(b, how)
		clear(b.local.Bytes())
		posted, _, err := a.Exchange([]fabric.Op{a.op(fabric.Send, 2, 0, 8)}, nil)
		require.NoError(t, err)
		assert.Equal(t, tt.posted, posted, "%d", how)
		got := a.poll(5)
		assert.Len(t, got, tt.inFlight+tt.later, "%d", how)
		for _, c := range got {
			require.ErrorIs(t, c.Err, ErrCanceled)
		}
		a.post(a.op(fabric.Recv, 0, 0, 8))
		assert.Len(t, a.poll(1), 1, "what the dead had sent still arrives")
		assert.Equal(t, "late", string(a.local.Bytes()[:4]))
		_, _, err = b.Exchange(nil, nil)
		require.ErrorIs(t, err, ErrClosed)
		assert.Equal(t, 1, n.Stats().Endpoints)
	}
}

// TestInjectToTheDead: an inject to a dead peer gives its place in the queue back, whatever has
// become of the peer, since the provider has copied the message.
func TestInjectToTheDead(t *testing.T) {
	for _, how := range []Death{DeathError, DeathSilent} {
		n, a, b := pair(t, Config{Personality: Personality{TxDepth: 1, InjectSize: 8}})
		a.post(a.op(fabric.Inject, 0, 0, 8)) // no receive: stays in flight
		n.Kill(b, how)
		a.poll(1)
		a.post(a.op(fabric.Inject, 0, 0, 8))
		a.poll(1)
		a.post(a.op(fabric.Inject, 0, 0, 8))
	}
}

func TestClose(t *testing.T) {
	for _, weak := range []bool{false, true} {
		n, a, _ := pair(t, Config{Personality: Personality{WeakCompletion: weak}})
		c := open(t, n)
		ep, err := n.Open("sim", netip.Addr{})
		require.NoError(t, err)
		r, err := ep.Register(make([]byte, 8), pool.AccessLocal)
		require.NoError(t, err)
		to, err := ep.Insert(c.Name())
		require.NoError(t, err)
		_, _, err = ep.Exchange([]fabric.Op{{Kind: fabric.Send, To: to, Buf: []byte("bye")}}, nil)
		require.NoError(t, err)
		require.ErrorIs(t, ep.Close(), ErrBusy)
		require.NoError(t, r.Close())
		require.ErrorIs(t, r.Close(), ErrInvalid)
		require.NoError(t, ep.Close())
		require.ErrorIs(t, ep.Close(), ErrClosed)
		c.post(c.op(fabric.Recv, 0, 0, 8))
		assert.Equal(t, weak, len(c.poll(1)) == 1, "what had completed arrives")
		assert.Equal(t, 3, n.Stats().Endpoints)
		assert.Equal(t, 6, n.Stats().Regions)

		a.to, err = a.Insert(ep.Name())
		require.NoError(t, err)
		a.post(a.op(fabric.Send, 0, 0, 1))
		got := a.poll(2)
		require.Len(t, got, 1)
		require.ErrorIs(t, got[0].Err, ErrCanceled)
	}
}

func TestProviders(t *testing.T) {
	n := New(Config{Personality: Shm(), Others: []Personality{TCP(), {}}})
	names := func(f fabric.Fabric) (names []string) {
		infos, err := f.Providers(netip.Addr{})
		require.NoError(t, err)
		for _, i := range infos {
			names = append(names, i.Name)
		}
		return names
	}
	assert.Equal(t, []string{"shm", "tcp;ofi_rxm", "sim"}, names(n))
	assert.Equal(t, []string{"tcp;ofi_rxm"}, names(n.Only("tcp;ofi_rxm")))
	for _, f := range []fabric.Fabric{n, n.Only("shm")} {
		_, err := f.Open("efa", netip.Addr{})
		require.ErrorIs(t, err, fabric.ErrNoProvider)
	}
	_, err := n.Only("shm").Open("sim", netip.Addr{})
	require.ErrorIs(t, err, fabric.ErrNoProvider)

	shm, err := n.Open("shm", netip.Addr{})
	require.NoError(t, err)
	tcp, err := n.Only("tcp;ofi_rxm").Open("tcp;ofi_rxm", netip.Addr{})
	require.NoError(t, err)
	_, err = shm.Insert(tcp.Name())
	require.ErrorIs(t, err, ErrInvalid)
	to, err := tcp.Insert([]byte("sim://tcp;ofi_rxm/99"))
	require.NoError(t, err)
	posted, _, err := tcp.Exchange([]fabric.Op{{Kind: fabric.Send, To: to}}, nil)
	require.NoError(t, err, "a peer that is not there is EAGAIN for ever")
	assert.Zero(t, posted)
	assert.Nil(t, shm.Waiter())
	assert.NotNil(t, tcp.Waiter())
	assert.True(t, shm.Attr().PerPeer)
}
