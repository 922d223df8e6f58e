package rdmanet_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// faultySide is a simulated network as one side sees it: calls of its endpoints fail as fault says.
type faultySide struct {
	*simfabric.Network
	fault simfabric.Fault
	opens atomic.Int32
}

func (f *faultySide) Open(provider string, src netip.Addr) (fabric.Endpoint, error) {
	if f.fault.Call == simfabric.CallOpen && f.opens.Add(1) > int32(f.fault.Skip) {
		return nil, f.fault.Err
	}
	ep, err := f.Network.Open(provider, src)
	if err == nil {
		f.FailCall(ep, f.fault)
	}
	return ep, err
}

var errCall = errors.New("the call fails")

// handshakeFaults returns a fault for each fabric call that a handshake makes: it fails the
// first time or later, and once or from then on.
func handshakeFaults() (faults []simfabric.Fault) {
	add := func(c simfabric.Call, err error, skips ...int) {
		for _, skip := range skips {
			for _, more := range []int{0, -1} {
				faults = append(faults, simfabric.Fault{Call: c, Skip: skip, More: more, Err: err})
			}
		}
	}
	for c := simfabric.CallOpen; c <= simfabric.CallClose; c++ {
		add(c, errCall, 0, 1, 2)
	}
	for _, k := range []fabric.Kind{fabric.Send, fabric.Inject, fabric.Recv, fabric.Write, fabric.WriteData} {
		add(simfabric.CallPost(k), errCall, 0, 1, 5)
		add(simfabric.CallPost(k), simfabric.ErrAgain, 0, 1, 5)
		add(simfabric.CallComplete(k), errCall, 0, 1, 5)
	}
	return faults
}

// atOnce is how long Close may take, whatever has gone wrong before.
const atOnce = time.Second

// closesPromptly closes Transports, between which a handshake may be under way, and checks that this
// is quick.
func closesPromptly(t *testing.T, what string, list ...*rdmanet.Transport) {
	t.Helper()
	for i, tr := range list {
		start, closed := time.Now(), make(chan error, 1)
		go func() { closed <- tr.Close() }()
		select {
		case err := <-closed:
			require.NoError(t, err, what)
			assert.Less(t, time.Since(start), atOnce, what)
		case <-time.After(rdmatest.Patience):
			require.Fail(t, "Close does not return", "%s, side %d", what, i)
		}
	}
}

// closing is a dial that is followed, or ended, by Close of both sides.
type closing struct {
	what  string
	views [2]fabric.Fabric // of the dialing and the listening side
	// relay returns the address to dial instead of the listener's, and a function that stops the relay.
	relay func(to string) (address string, stop func())
	wait  time.Duration // how long the test waits for the dial, which may hang, before it closes
	first int           // the side that is closed first
	err   error         // of the dial
	used  int64         // bytes of memory that both sides have not given back
}

func (c *closing) run(t *testing.T) {
	t.Helper()
	here, there := rdmanet.NewTransport(c.views[0]), rdmanet.NewTransport(c.views[1])
	l, err := (&rdmanet.ListenConfig{Transport: there}).Listen(t.Context(), "rdma", testenv.Address())
	require.NoError(t, err)
	defer runtime.KeepAlive(l) // a dropped listener would be closed
	address := l.Addr().String()
	if c.relay != nil {
		var stop func()
		address, stop = c.relay(address)
		defer stop()
	}
	dialed := make(chan struct{})
	go func() {
		defer close(dialed)
		var conn net.Conn
		if conn, c.err = (&rdmanet.Dialer{Transport: here}).Dial("rdma", address); c.err == nil {
			_ = conn.(*rdmanet.Conn).SetLinger(0)
			_ = conn.Close()
		}
	}()
	select {
	case <-dialed:
	case <-time.After(c.wait):
	}
	order := []*rdmanet.Transport{here, there}
	if c.first == 1 {
		order[0], order[1] = there, here
	}
	closesPromptly(t, c.what, order...)
	<-dialed
	for _, tr := range order {
		assert.Zero(t, tr.Stats().Peers, c.what)
		c.used += tr.Stats().Memory.Used
	}
}

// nothingLeft checks that both sides have given back everything that they had of the network.
func (c *closing) nothingLeft(t *testing.T, n *simfabric.Network) {
	t.Helper()
	s := n.Stats()
	assert.Zero(t, c.used, c.what)
	assert.Zero(t, s.Endpoints, c.what)
	assert.Zero(t, s.Regions, c.what)
	assert.Empty(t, s.Misuse, c.what)
}

// onHandshakes runs a test over several kinds of networks, and checks that it leaves no
// goroutines.
func onHandshakes(t *testing.T, test func(t *testing.T, p simfabric.Personality)) {
	for _, p := range []simfabric.Personality{simfabric.TCP(), simfabric.Shm(), simfabric.Verbs(), simfabric.CXI()} {
		t.Run(p.Provider, func(t *testing.T) {
			goroutines := goleak.IgnoreCurrent()
			test(t, p)
			goleak.VerifyNone(t, goroutines)
		})
	}
}

// TestCloseAfterFaults: whichever call of a handshake fails, on either side, Close of both sides
// returns at once and leaves nothing behind, both after the handshake and in the middle of it.
func TestCloseAfterFaults(t *testing.T) {
	onHandshakes(t, func(t *testing.T, p simfabric.Personality) {
		for i, f := range handshakeFaults() {
			for side := range 2 {
				for _, wait := range []time.Duration{20 * time.Millisecond, time.Duration(i%8) * time.Millisecond / 2} {
					n := simfabric.New(simfabric.Config{Seed: 1, Personality: p})
					c := closing{what: fmt.Sprintf("%+v on side %d", f, side), views: [2]fabric.Fabric{n, n}, wait: wait, first: i % 2}
					c.views[side] = &faultySide{Network: n, fault: f}
					c.run(t)
					switch f.Call {
					case simfabric.CallCloseRegion, simfabric.CallShutdown, simfabric.CallClose: // what fails to close is left
					default:
						c.nothingLeft(t, n)
					}
				}
			}
		}
	})
}

// TestCloseAtEachStep: whichever message of a handshake is the last to arrive, and whether the
// connection then ends or falls silent, Close of both sides returns at once.
func TestCloseAtEachStep(t *testing.T) {
	const steps = 8 // more than there are messages in each direction
	onHandshakes(t, func(t *testing.T, p simfabric.Personality) {
		for step := range steps {
			for way := range 2 {
				for _, cut := range []bool{false, true} {
					for first := range 2 {
						n := simfabric.New(simfabric.Config{Seed: 1, Personality: p})
						c := closing{what: fmt.Sprintf("message %d, way %d, cut %v, side %d first", step, way, cut, first),
							views: [2]fabric.Fabric{n, n}, wait: 20 * time.Millisecond, first: first}
						if step == steps-1 {
							c.wait = rdmatest.Patience
						}
						c.relay = func(to string) (string, func()) { return relayUpTo(t, to, way, step, cut) }
						c.run(t)
						c.nothingLeft(t, n)
						switch step {
						case 0:
							assert.Error(t, c.err, c.what)
						case steps - 1:
							assert.NoError(t, c.err, c.what)
						}
					}
				}
			}
		}
	})
}

// relayUpTo relays connections, but only that many messages one way (0: from the dialing side).
// Then it ends them if cut is set, or else passes nothing more in either direction.
func relayUpTo(t *testing.T, to string, way, messages int, cut bool) (address string, stop func()) {
	l, err := net.Listen("tcp", testenv.Address())
	require.NoError(t, err)
	var wg sync.WaitGroup
	over := make(chan struct{})
	pass := func(from, to net.Conn, left int, mute *atomic.Bool) {
		defer from.Close()
		defer to.Close()
		buf := make([]byte, 64<<10)
		for {
			k, err := from.Read(buf)
			switch {
			case err != nil || left == 0 && cut:
				return
			case left == 0 || mute.Load():
				mute.Store(true)
				<-over
				return
			}
			left--
			if _, err := to.Write(buf[:k]); err != nil {
				return
			}
		}
	}
	wg.Go(func() {
		for {
			a, err := l.Accept()
			if err != nil {
				return
			}
			b, err := net.Dial("tcp", to)
			if err != nil {
				a.Close()
				continue
			}
			left, mute := [2]int{-1, -1}, new(atomic.Bool)
			left[way] = messages
			wg.Go(func() { pass(a, b, left[0], mute) })
			wg.Go(func() { pass(b, a, left[1], mute) })
		}
	})
	return l.Addr().String(), func() {
		l.Close()
		close(over)
		wg.Wait()
	}
}
