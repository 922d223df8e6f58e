package engine

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/internal/race"
	"github.com/seed202c38ff/fabricnet/pool"
)

// damage is an endpoint on a fabric that damages what it carries.
type damage struct {
	fabric.Endpoint
	// Completions of kind loses are lost, and operations of kind spoils arrive with a byte changed.
	loses, spoils fabric.Kind
	// The first spared operations are left alone.
	spared int
}

func (d *damage) Exchange(ops []fabric.Op, done []fabric.Completion) (posted, reaped int, err error) {
	for _, op := range ops {
		if op.Kind == d.spoils || d.spoils == fabric.Send && op.Kind == fabric.Inject {
			if d.spared--; d.spared < 0 {
				op.Buf[len(op.Buf)-1] ^= 1
			}
		}
	}
	posted, reaped, err = d.Endpoint.Exchange(ops, done)
	lost := func(c fabric.Completion) bool { return c.Kind == d.loses && c.Kind != 0 }
	return posted, len(slices.DeleteFunc(done[:reaped], lost)), err
}

// checkOver runs a path check over a network whose endpoints were passed through wrap.
func checkOver(t *testing.T, sim simfabric.Config, wrap func(fabric.Endpoint) fabric.Endpoint) (err error) {
	synctest.Test(t, func(*testing.T) {
		link, e := newLinkOf(sim, Config{Spin: -1, Budget: pool.NewBudget(64 << 20), DeadAfter: 10 * time.Second}, wrap)
		err = e
		if e == nil {
			assert.True(t, link.b.Checked())
		}
		for _, e := range []*Endpoint{link.ea, link.eb} {
			if e != nil {
				err = errors.Join(err, e.Close())
			}
		}
	})
	return err
}

// TestPathCheck: every honest fabric passes, whatever it does to the order and the timing.
func TestPathCheck(t *testing.T) {
	for name, sim := range personalities() {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(race.Fewer(50)) {
				sim.Seed, sim.Delay, sim.Straggle, sim.AgainRate = seed, 4<<(seed%4), 0.3, 0.05
				sim.CompletionReorder = true
				require.NoError(t, checkOver(t, sim, func(e fabric.Endpoint) fabric.Endpoint { return e }), "seed %d", seed)
			}
		})
	}
}

// TestPathCheckFails: what goes wrong with messages, writes, their notices or completions is noticed before there is a conn.
func TestPathCheckFails(t *testing.T) {
	for name, tt := range map[string]struct {
		p    simfabric.Personality
		d    damage
		want error
	}{
		"messages are spoilt":         {simfabric.TCP(), damage{spoils: fabric.Send}, ErrContents},
		"long messages of shm":        {simfabric.Shm(), damage{spoils: fabric.Send}, ErrContents},
		"writes are spoilt":           {simfabric.TCP(), damage{spoils: fabric.Write}, ErrContents},
		"writes with data are spoilt": {simfabric.Net(), damage{spoils: fabric.WriteData}, ErrContents},
		"the second write is":         {simfabric.Net(), damage{spoils: fabric.WriteData, spared: 1}, ErrContents},
		"the third write is":          {simfabric.Net(), damage{spoils: fabric.WriteData, spared: 2}, nil},
		"no notice of writes":         {simfabric.Silent(), damage{}, context.DeadlineExceeded},
		"no completion of writes":     {simfabric.TCP(), damage{loses: fabric.Write}, ErrStuck},
		"no messages":                 {simfabric.TCP(), damage{loses: fabric.Recv}, context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			err := checkOver(t, simfabric.Config{Seed: 1, Personality: tt.p}, func(e fabric.Endpoint) fabric.Endpoint {
				d := tt.d
				d.Endpoint = e
				return &d
			})
			require.ErrorIs(t, err, tt.want) // nil, too
		})
	}
}

// pathLies are those of TestRules that concern the path of data. The path check always notices the
// ones marked true. It notices the others, which are about order, in some of many runs.
var pathLies = map[string]bool{
	"writes carry data": true, "writes carry a proof": true, "sends are as long as writes": true, "injects are long": true,
	"buffers need no registration": true, "regions begin at 0": true,
	"a send comes after the writes before it": false, "a completion means delivery": false,
}

// TestPathCheckOfLies: a provider that lies is passed over, or ends in an error. It never hangs.
func TestPathCheckOfLies(t *testing.T) {
	for _, p := range []simfabric.Personality{
		simfabric.Verbs(), simfabric.EFA(), simfabric.EFADirect(), simfabric.CXI(), simfabric.OPX(), simfabric.PSM3(),
	} {
		for name, always := range pathLies {
			l := lies[name]
			if !l.of(p) || name == "a completion means delivery" && p.CQDataSize > 0 { // there it matters only to rings that change hands
				continue
			}
			t.Run(p.Provider+"/"+name, func(t *testing.T) {
				seeds := 40 // of which some have to show a lie that can go unnoticed
				if always {
					seeds = race.Fewer(40)
				}
				noticed := 0
				for seed := range uint64(seeds) {
					sim := simfabric.Config{
						Seed: seed, Personality: p, Delay: 4 << (seed % 4), Straggle: 0.3, AgainRate: 0.05, CompletionReorder: true,
					}
					if err := checkOver(t, sim, l.tell); err != nil {
						noticed++
					}
					if seed < uint64(race.Fewer(10)) {
						_ = try(t, p, seed, l) // it must return, on virtual time
					}
				}
				t.Logf("noticed in %d of %d", noticed, seeds)
				if always {
					assert.Equal(t, seeds, noticed)
				} else {
					assert.Positive(t, noticed)
				}
			})
		}
	}
}

// TestPathChecksAtOnce: many peers of one endpoint check their paths at once, in both roles, of which nothing is left.
func TestPathChecksAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := simfabric.New(simfabric.Config{Seed: 3, Personality: simfabric.TCP(), Delay: 16})
		open := func() *Endpoint { return openOn(t, net, "tcp;ofi_rxm", Config{Spin: -1, PeerSlots: framing.MinSlots}) }
		ea, eb := open(), open()
		const pairs = 20
		ended := make(chan error, 2*pairs)
		for range pairs {
			for _, way := range [][2]*Endpoint{{ea, eb}, {eb, ea}} {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				a, b := introduce(t, way[0], way[1], nil)
				go func() {
					err := a.Check(ctx)
					a.Attached(Doorbell{}, Spill{})
					b.Attached(Doorbell{}, Spill{})
					ended <- err
				}()
			}
		}
		for range 2 * pairs {
			require.NoError(t, <-ended)
		}
		time.Sleep(3 * choreTime)
		for _, e := range []*Endpoint{ea, eb} {
			locked(e, func() {
				for _, p := range e.core.order {
					assert.Empty(t, p.list)
					assert.Zero(t, p.landing.Stats().Mapped)
				}
				assert.Zero(t, e.core.stage.Len())
				assert.Zero(t, e.core.stats.Conns)
			})
			require.NoError(t, e.Close())
		}
	})
}

// openAlone is an endpoint without peers.
func openAlone(t *testing.T, sim simfabric.Config) *Endpoint {
	t.Helper()
	net := simfabric.New(sim)
	e := openOn(t, net, sim.Provider, Config{Budget: pool.NewBudget(0)})
	t.Cleanup(func() {
		assert.NoError(t, e.Close())
		assert.Empty(t, net.Stats().Misuse)
	})
	return e
}

// TestSelfCheck: an endpoint checks the path to itself, and has no peers afterwards.
func TestSelfCheck(t *testing.T) {
	for _, preset := range simfabric.Presets() {
		if preset.PerPeer {
			continue
		}
		t.Run(preset.Name, func(t *testing.T) {
			e := openAlone(t, simfabric.Config{Seed: 1, Personality: preset.Personality})
			require.NoError(t, e.SelfCheck(t.Context()))
			s := e.Stats()
			assert.Zero(t, s.Peers)
			assert.Zero(t, s.PeersLost)
			assert.Zero(t, s.FramesStray)
		})
	}
}

// TestSelfCheckEnds: a self-check takes no longer than its context allows, leaves no peer behind, and succeeds later.
func TestSelfCheckEnds(t *testing.T) {
	e := openAlone(t, simfabric.Config{Seed: 1, Personality: simfabric.TCP()})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.Error(t, e.SelfCheck(ctx))
	assert.Zero(t, e.Stats().Peers)
	require.NoError(t, e.SelfCheck(t.Context()), "later")
}
