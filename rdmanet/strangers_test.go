package rdmanet_test

import (
	"context"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/internal/race"
	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// muteFabric opens endpoints that send only operations for which says returns true, and nothing
// if it is nil. A dialer with such an endpoint completes the handshake, but never gets through
// the path check.
type muteFabric struct {
	fabric.Fabric
	says func(fabric.Op) bool
}

func (f muteFabric) Open(provider string, src netip.Addr) (fabric.Endpoint, error) {
	ep, err := f.Fabric.Open(provider, src)
	return muteEndpoint{ep, f.says}, err
}

type muteEndpoint struct {
	fabric.Endpoint
	says func(fabric.Op) bool
}

// Exchange posts receives, and the operations that says allows. An endpoint that sends anything
// hears nothing, since an answer would make it give up by itself.
func (e muteEndpoint) Exchange(ops []fabric.Op, done []fabric.Completion) (posted, reaped int, err error) {
	n := slices.IndexFunc(ops, func(o fabric.Op) bool { return o.Kind != fabric.Recv && (e.says == nil || !e.says(o)) })
	if n >= 0 {
		ops = ops[:n]
	}
	if e.says != nil {
		done = nil
	}
	return e.Endpoint.Exchange(ops, done)
}

// siege makes strangers dial a listener until ctx ends, at intervals of each. Every stranger has an
// address of its own.
func siege(ctx context.Context, f fabric.Fabric, addr string, each time.Duration) (ended <-chan struct{}) {
	tr := rdmanet.NewTransport(muteFabric{Fabric: f})
	tr.MemoryLimit, tr.FailureMemory = 4<<30, -1 // since each stranger has an endpoint, for its address
	over := make(chan struct{})
	go func() {
		defer close(over)
		var wg sync.WaitGroup
		tick := time.NewTicker(each)
		defer tick.Stop()
		for i := 0; ctx.Err() == nil; i++ {
			d := &rdmanet.Dialer{
				Transport: tr, DisableReuse: true, Timeout: 10 * time.Second,
				LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 1, byte(i/250), byte(1+i%250))},
			}
			wg.Go(func() {
				if c, err := d.DialContext(ctx, "rdma", addr); err == nil {
					c.Close()
				}
			})
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
		wg.Wait()
		tr.Close()
	}()
	return over
}

// besieged dials a listener again and again while fifty strangers a second come, each from
// an address of its own, and checks how long its dials take.
func besieged(t *testing.T, f fabric.Fabric) {
	here, there := rdmanet.NewTransport(f), rdmanet.NewTransport(f)
	rdmatest.Cleanly(t, there)
	defer here.Close()
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there})
	d := &rdmanet.Dialer{Transport: here, DisableReuse: true, Timeout: rdmatest.Patience}
	before := there.Stats().Memory.Used
	for range 4 { // what is opened only once is open after this
		c, s := rdmatest.Meet(t, d, l)
		rdmatest.CloseAll(t, c, s)
	}
	seconds := rdmatest.AllRounds(15, 60) // for some hundreds of dials: of fewer, the slowest would be the p99
	if race.Enabled {
		seconds = rdmatest.AllRounds(3, 60)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(seconds)*time.Second)
	defer cancel()
	ended := siege(ctx, f, l.Addr().String(), 20*time.Millisecond)
	bound, outMost := 200*time.Millisecond, 0
	var took []time.Duration
	var out []error
	peers := 0
	for ctx.Err() == nil {
		begin := time.Now()
		c, err := d.Dial("rdma", l.Addr().String())
		took = append(took, time.Since(begin))
		if err != nil {
			out = append(out, err)
			continue
		}
		s := rdmatest.Accept(t, l)
		rdmatest.Echo(t, c, s)
		rdmatest.CloseAll(t, c, s)
		peers = max(peers, there.Stats().Peers)
		time.Sleep(10 * time.Millisecond)
	}
	<-ended
	slices.Sort(took)
	p99 := took[len(took)*99/100]
	t.Logf("%d dials: median %v, p99 %v, slowest %v; %d peers at most; failures %v",
		len(took), took[len(took)/2], p99, took[len(took)-1], peers, there.Stats().HandshakeFailures)
	if race.Enabled {
		bound, outMost = rdmatest.Patience, len(took)/20
	}
	assert.Less(t, p99, bound)
	assert.LessOrEqual(t, len(out), outMost, "%v", out)
	assert.Less(t, peers, 40, "peers, the unproven included")
	assert.NotZero(t, there.Stats().HandshakeFailures["busy"])
	rdmatest.Eventually(t, func() bool { return there.Stats().Handshakes == 0 }, "no handshakes are left")
	here.Close()
	rdmatest.Eventually(t, func() bool { return there.Stats().Peers == 0 }, "no peers are left")
	rdmatest.Eventually(t, func() bool {
		there.CloseIdle() // the last peer may just be leaving its endpoint
		return there.Stats().Memory.Used <= before
	}, "memory returns")
}

// TestStrangers: strangers that complete the handshake but do not use the fabric keep nobody out.
func TestStrangers(t *testing.T) {
	for _, p := range []simfabric.Personality{simfabric.TCP(), simfabric.Verbs(), simfabric.Net()} {
		t.Run(p.Provider, func(t *testing.T) {
			n := simfabric.New(simfabric.Config{Seed: 1, Personality: p})
			besieged(t, n)
		})
	}
}

// TestMaxPeers: beyond the limits, a peer is let in only in place of one without conns, whose
// next dial does not notice.
func TestMaxPeers(t *testing.T) {
	for name, lc := range map[string]rdmanet.ListenConfig{
		"in all":   {MaxPeers: 2},
		"per host": {MaxPeersPerHost: 2},
	} {
		t.Run(name, func(t *testing.T) {
			n := simfabric.New(simfabric.Config{Seed: 1, Personality: simfabric.TCP()})
			there := rdmanet.NewTransport(n)
			rdmatest.Cleanly(t, there)
			lc.Transport = there
			l := rdmatest.Listen(t, lc)
			dialers := make([]*rdmanet.Dialer, 3)
			for i := range dialers {
				tr := rdmanet.NewTransport(n)
				t.Cleanup(func() { tr.Close() })
				dialers[i] = &rdmanet.Dialer{Transport: tr, Timeout: rdmatest.Patience}
			}
			a, as := rdmatest.Meet(t, dialers[0], l)
			b, bs := rdmatest.Meet(t, dialers[1], l)
			_, err := dialers[2].Dial("rdma", l.Addr().String())
			require.ErrorIs(t, err, rdmanet.ErrTooManyPeers)
			require.ErrorContains(t, err, "ListenConfig.MaxPeers")
			if name == "per host" {
				other := *dialers[2]
				other.LocalAddr = &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}
				c, s := rdmatest.Meet(t, &other, l)
				rdmatest.CloseAll(t, c, s)
			}
			rdmatest.CloseAll(t, b, bs)
			rdmatest.Eventually(t, func() bool {
				c, err := dialers[2].Dial("rdma", l.Addr().String())
				if err == nil {
					rdmatest.CloseAll(t, c, rdmatest.Accept(t, l))
				}
				return err == nil
			}, "a place for the third once the second is idle")
			rdmatest.Eventually(t, func() bool {
				c, err := dialers[1].Dial("rdma", l.Addr().String())
				if err == nil {
					rdmatest.CloseAll(t, c, rdmatest.Accept(t, l))
				}
				return err == nil
			}, "and for the second once the third is")
			rdmatest.Echo(t, a, as)
			rdmatest.CloseAll(t, a, as)
			assert.NotZero(t, there.Stats().HandshakeFailures["too many peers"])
			assert.NotZero(t, there.Stats().PeersRefused)
		})
	}
}

// TestLetGoUnnoticed: a dial over a peer that is just being let go continues over a new one.
func TestLetGoUnnoticed(t *testing.T) {
	for _, p := range []simfabric.Personality{simfabric.TCP(), simfabric.Shm(), simfabric.Verbs()} {
		t.Run(p.Provider, func(t *testing.T) {
			n := simfabric.New(simfabric.Config{Seed: 1, Personality: p})
			here, there := rdmanet.NewTransport(n), rdmanet.NewTransport(n)
			rdmatest.Cleanly(t, there)
			defer here.Close()
			l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there})
			d := &rdmanet.Dialer{Transport: here, Timeout: rdmatest.Patience}
			c, s := rdmatest.Meet(t, d, l)
			rdmatest.CloseAll(t, c, s)
			crossed := 0
			for i := range 200 {
				gone := make(chan bool)
				go func() { gone <- rdmanet.LetGo(l) }()
				for range i % 20 {
					runtime.Gosched()
				}
				c, err := d.Dial("rdma", l.Addr().String())
				require.NoError(t, err, "dial %d", i)
				if <-gone {
					crossed++
				}
				rdmatest.CloseAll(t, c, rdmatest.Accept(t, l))
			}
			t.Logf("%d of 200 crossed", crossed)
			assert.NotZero(t, crossed)
		})
	}
}

// TestStrangersHangUp: of hundreds of dialers that wait for a place and hang up all at once, each
// has its place until nothing is left of it.
func TestStrangersHangUp(t *testing.T) {
	n := simfabric.New(simfabric.Config{Seed: 1, Personality: simfabric.Net()})
	there := rdmanet.NewTransport(n)
	rdmatest.Cleanly(t, there)
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there})
	ctx, cancel := context.WithCancel(t.Context())
	ended := siege(ctx, n, l.Addr().String(), time.Millisecond)
	rdmatest.Eventually(t, func() bool { return there.Stats().Handshakes >= 300 }, "hundreds wait")
	cancel()
	most := 0
	for s := there.Stats(); s.Handshakes > 0; s = there.Stats() {
		most = max(most, s.Peers)
		runtime.Gosched()
	}
	<-ended
	assert.LessOrEqual(t, most, 32, "peers")
}
