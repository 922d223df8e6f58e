package simfabric

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/pool"
)

// Bursts refuse far more operations in a row than chance would.
func TestRefusalBurst(t *testing.T) {
	_, a, b := pair(t, Config{AgainRate: 0.02, AgainBurst: 200})
	longest, burst := 0, 0
	for range 3000 {
		posted, _, err := a.Exchange([]fabric.Op{a.write(b, fabric.Write, 0, 0, 1)}, make([]fabric.Completion, 2))
		require.NoError(t, err)
		if burst++; posted == 1 {
			burst = 0
		}
		longest = max(longest, burst)
	}
	assert.Greater(t, longest, 50)
	assert.LessOrEqual(t, longest, 2*201) // one burst may follow another
}

// With a delay, an operation that fails does so at the time when it would have arrived, and
// operations posted later can overtake it.
func TestErrorsOnTheWire(t *testing.T) {
	var events []Event
	n, a, b := pair(t, Config{Seed: 3, Delay: 50, Observe: func(ev Event) { events = append(events, ev) }})
	errTest := errors.New("test")
	a.local.Bytes()[0] = 1
	n.Fail(a, fabric.Write, errTest)
	a.post(a.write(b, fabric.Write, 1, 0, 1))
	require.Equal(t, []Event{{From: string(a.Name()), To: string(b.Name()), Call: CallComplete(fabric.Write), Kind: fabric.Write, Err: errTest, Addr: a.to, Key: b.landing.Region().Key()}}, events)
	assert.Empty(t, a.poll(1))
	assert.Equal(t, []fabric.Completion{{Kind: fabric.Write, Tag: 1, Err: errTest}}, a.poll(60))
	assert.Zero(t, b.landing.Bytes()[0])
	assert.Len(t, events, 1)
}

// A few operations take far longer than all others.
func TestStragglers(t *testing.T) {
	_, a, b := pair(t, Config{Seed: 1, Delay: 4, Straggle: 0.1})
	late := 0
	for range 300 {
		a.post(a.write(b, fabric.Write, 0, 0, 1))
		steps := 0
		for ; len(a.poll(1)) == 0; steps++ {
			require.Less(t, steps, 64+1)
		}
		if steps > 4 {
			late++
		}
	}
	assert.Greater(t, late, 10)
	assert.Less(t, late, 60)
}

// Observe is called for every byte before it is written.
func TestObserve(t *testing.T) {
	var b *side
	seen := map[uint64]bool{}
	observe := func(ev Event) {
		at := ev.Remote - b.landing.Region().Base()
		for i := at; i < at+uint64(ev.Len); i++ {
			assert.True(t, seen[i] || b.landing.Bytes()[i] == 0, "too late")
			seen[i] = true
		}
		assert.Equal(t, b.landing.Region().Key(), ev.Key)
		assert.Equal(t, string(b.Name()), ev.To)
	}
	p := Personality{VirtAddr: true}
	_, a, b := pair(t, Config{Personality: p, Delay: 3, Observe: func(ev Event) { observe(ev) }})
	for i := range a.local.Bytes() {
		a.local.Bytes()[i] = 1
	}
	a.post(a.write(b, fabric.Write, 1, 100, 50))
	a.poll(20)
	assert.Len(t, seen, 50)
}

// If sends are ordered after writes, no send arrives if the write before it was dropped by a close.
func TestClosingKeepsTheOrder(t *testing.T) {
	for seed := range uint64(20) {
		_, a, b := pair(t, Config{Seed: seed, Delay: 50, Personality: Verbs()})
		b.post(b.op(fabric.Recv, 1, 0, 64))
		a.post(a.write(b, fabric.Write, 2, 0, 1))
		a.post(a.op(fabric.Inject, 3, 64, 8))
		require.NoError(t, a.Shutdown())
		assert.Empty(t, b.poll(100), "seed %d", seed)
	}
}

// Every call can be made to fail: the chosen one, as often as was asked for, and then no more.
func TestFailCall(t *testing.T) {
	errTest := errors.New("test")
	register := func(access pool.Access) func(*Network, *side, *side) error {
		return func(_ *Network, a, _ *side) error {
			r, err := a.Register(make([]byte, 8), access)
			if err == nil {
				err = r.Close()
			}
			return err
		}
	}
	// done posts an operation and returns the error of its completion.
	done := func(op func(a, b *side) fabric.Op) func(*Network, *side, *side) error {
		return func(_ *Network, a, b *side) error {
			a.post(op(a, b))
			var errs []error
			for _, c := range a.poll(2) {
				errs = append(errs, c.Err)
			}
			return errors.Join(errs...)
		}
	}
	post := func(op func(a, b *side) fabric.Op) func(*Network, *side, *side) error {
		return func(_ *Network, a, b *side) error {
			posted, _, err := a.Exchange([]fabric.Op{op(a, b)}, nil)
			assert.Equal(t, err == nil, posted == 1)
			a.poll(2)
			return err
		}
	}
	send := func(a, _ *side) fabric.Op { return a.op(fabric.Send, 1, 0, 8) }
	write := func(a, b *side) fabric.Op { return a.write(b, fabric.Write, 1, 0, 8) }
	recv := func(a, _ *side) fabric.Op { return a.op(fabric.Recv, 1, 0, 8) }
	for name, tt := range map[string]struct {
		call Call
		do   func(n *Network, a, b *side) error
	}{
		"insert": {call: CallInsert, do: func(_ *Network, a, b *side) error {
			_, err := a.Insert(b.Name())
			return err
		}},
		"remove": {call: CallRemove, do: func(_ *Network, a, b *side) error {
			addr, err := a.Insert(b.Name())
			require.NoError(t, err)
			return a.Remove(addr)
		}},
		"register local":  {call: CallRegisterLocal, do: register(pool.AccessLocal)},
		"register remote": {call: CallRegisterRemote, do: register(pool.AccessRemoteWrite)},
		"close region": {call: CallCloseRegion, do: func(_ *Network, a, _ *side) error {
			r, err := a.Register(make([]byte, 8), pool.AccessLocal)
			require.NoError(t, err)
			if err = r.Close(); err != nil {
				a.t.Cleanup(func() { assert.NoError(t, r.Close(), "it is still open") })
			}
			return err
		}},
		"poll": {call: CallPoll, do: func(_ *Network, a, _ *side) error {
			_, _, err := a.Exchange(nil, make([]fabric.Completion, 1))
			return err
		}},
		"wait": {call: CallWait, do: func(_ *Network, a, _ *side) error {
			_, err := a.Waiter().TryWait()
			return err
		}},
		"post a send":        {call: CallPost(fabric.Send), do: post(send)},
		"post a write":       {call: CallPost(fabric.Write), do: post(write)},
		"post a receive":     {call: CallPost(fabric.Recv), do: post(recv)},
		"complete a send":    {call: CallComplete(fabric.Send), do: done(send)},
		"complete a write":   {call: CallComplete(fabric.Write), do: done(write)},
		"shutdown":           {call: CallShutdown, do: func(_ *Network, a, _ *side) error { return a.Shutdown() }},
		"complete a receive": {call: CallComplete(fabric.Recv), do: done(recv)},
	} {
		t.Run(name, func(t *testing.T) {
			var events []Event
			n, a, b := pair(t, Config{Observe: func(ev Event) {
				if ev.Err != nil {
					events = append(events, ev)
				}
			}})
			b.post(b.op(fabric.Recv, 1, 0, 8), b.op(fabric.Recv, 1, 8, 8), b.op(fabric.Recv, 1, 16, 8))
			n.FailCall(a, Fault{Call: tt.call, Skip: 1, More: 1, Err: errTest})
			var failed []bool
			for range 5 {
				err := tt.do(n, a, b)
				failed = append(failed, err != nil)
				if err != nil {
					require.ErrorIs(t, err, errTest)
				}
			}
			assert.Equal(t, []bool{false, true, true, false, false}, failed)
			assert.Len(t, events, 2)
			for _, ev := range events {
				assert.Equal(t, tt.call, ev.Call)
				assert.Equal(t, string(a.Name()), ev.From)
			}
			assert.EqualValues(t, 2, n.Stats().Failed)
		})
	}
}

// Operations can be refused for good, and faults can be set for endpoints that are not open yet.
func TestFailLater(t *testing.T) {
	errTest := errors.New("test")
	n, a, _ := pair(t, Config{})
	n.FailCall(a, Fault{Call: CallPost(fabric.Recv), Skip: 2, More: -1, Err: ErrAgain})
	posted := 0
	for range 50 {
		n, _, err := a.Exchange([]fabric.Op{a.op(fabric.Recv, 1, 0, 8)}, nil)
		require.NoError(t, err)
		posted += n
	}
	assert.Equal(t, 2, posted)
	assert.EqualValues(t, 48, n.Stats().Refused)
	n.FailCall(a, Fault{})
	a.post(a.op(fabric.Recv, 1, 0, 8))

	n.FailCall(nil, Fault{Call: CallOpen, Skip: 1, Err: errTest})
	n.FailCall(nil, Fault{Call: CallInsert, Skip: 2, Err: errTest})
	n.FailCall(nil, Fault{Call: CallClose, Err: errTest})
	c := open(t, n)
	_, err := n.Open("sim", netip.Addr{})
	require.ErrorIs(t, err, errTest)
	d := open(t, n)
	for i, s := range []*side{a, c, d, d, c} {
		_, err := s.Insert(a.Name())
		assert.Equal(t, i == 3, errors.Is(err, errTest), "%d", i) // the third Insert on endpoints that were new
	}
	require.NoError(t, c.local.Deregister())
	require.NoError(t, c.landing.Deregister())
	require.ErrorIs(t, c.Close(), errTest)
	require.NoError(t, c.Close())
}
