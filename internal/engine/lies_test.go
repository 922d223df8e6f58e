package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/internal/race"
	"github.com/seed202c38ff/fabricnet/pool"
)

// lie is a rule of a provider that its endpoints deny, so that the engine breaks it.
type lie struct {
	of      func(p simfabric.Personality) bool // whether a provider has the rule
	claim   func(a *fabric.Attr)
	op      func(op *fabric.Op) // how the endpoint changes operations
	offsets bool                // peers are told to write to offsets
	waits   bool                // the endpoint says that there is something to wait on
	maps    mapsMemory          // how peers' memory is mapped; nil: as it is
}

// lies has no rule about the order of sends: the engine relies on none.
var lies = map[string]lie{
	"a send comes after the writes before it": {
		of:    func(p simfabric.Personality) bool { return p.Order&fabric.SendAfterWrite == 0 },
		claim: func(a *fabric.Attr) { a.Order, a.CQDataSize = a.Order|fabric.SendAfterWrite, 0 },
	},
	"writes carry data": {
		of:    func(p simfabric.Personality) bool { return p.CQDataSize < 4 && !p.SameHost },
		claim: func(a *fabric.Attr) { a.CQDataSize = 4 },
	},
	"writes carry a proof": {
		of:    func(p simfabric.Personality) bool { return p.CQDataSize == 4 },
		claim: func(a *fabric.Attr) { a.CQDataSize = 8 },
	},
	"a completion means delivery": {
		of: func(p simfabric.Personality) bool { return p.WeakCompletion && p.Order&fabric.SendAfterWrite == 0 },
		op: func(op *fabric.Op) { op.Deliver = false },
	},
	"sends are as long as writes": {
		of:    func(p simfabric.Personality) bool { return p.MaxMsgSize > 0 && p.MaxMsgSize < eagerFrame },
		claim: func(a *fabric.Attr) { a.MaxMsgSize = a.MaxRMASize },
	},
	"injects are long": {
		of:    func(p simfabric.Personality) bool { return p.InjectSize < eagerFrame && !p.SameHost }, // where all frames are injected
		claim: func(a *fabric.Attr) { a.InjectSize = eagerFrame },
	},
	"buffers need no registration": {
		of:    func(p simfabric.Personality) bool { return p.LocalMR },
		claim: func(a *fabric.Attr) { a.LocalMR = false },
	},
	"regions begin at 0": {of: func(p simfabric.Personality) bool { return p.VirtAddr }, offsets: true},
	"Shutdown ends the use of memory": {
		of:    func(p simfabric.Personality) bool { return p.EndpointMR },
		claim: func(a *fabric.Attr) { a.EndpointMR = false },
	},
	"there is something to wait on": {of: func(p simfabric.Personality) bool { return p.NoWait }, waits: true},
	"what is mapped is the peer's":  {of: func(p simfabric.Personality) bool { return p.SameHost }, maps: mapsOther(landingSlab)},
}

// mapsOther maps size bytes that are nobody's.
func mapsOther(size int) mapsMemory {
	return func(b *pool.Budget) func(pool.SharedName) (*pool.Slab, error) {
		return func(pool.SharedName) (*pool.Slab, error) {
			other, block, err := sharedBlock(size, [16]byte{})
			if err != nil {
				return nil, err
			}
			slab, err := opens(b)(block.Shared)
			return slab, errors.Join(err, other.Close())
		}
	}
}

// Rules that several providers share.
var (
	unordered = []string{"a send comes after the writes before it", "injects are long"}
	likeEFA   = append([]string{"buffers need no registration", "regions begin at 0", "there is something to wait on"}, unordered...)
)

// rules are what TestRules must break for each personality. Otherwise one that has lost a rule
// would go untested, and nobody would know. Beside them is what the engine relies on nowhere, so
// that no test would notice if a personality offered too much.
var rules = map[string]struct {
	lies           []string
	order          fabric.Order
	message, write uint64 // longest
}{
	"verbs": {
		[]string{"writes carry a proof", "injects are long", "buffers need no registration", "regions begin at 0"},
		fabric.SendAfterSend | fabric.SendAfterWrite | fabric.WriteAfterWrite, 8 << 20, 0,
	},
	"efa": {
		append([]string{"writes carry a proof", "a completion means delivery"}, likeEFA...),
		fabric.SendAfterSend, 0, 0,
	},
	"efa-direct": {
		append([]string{"writes carry a proof", "sends are as long as writes"}, likeEFA...),
		0, 8 << 10, 1 << 30,
	},
	"cxi": {
		append([]string{"writes carry data", "a completion means delivery", "Shutdown ends the use of memory"}, unordered...),
		fabric.SendAfterSend | fabric.WriteAfterWrite, 1<<32 - 1, 0,
	},
	"opx": {
		append([]string{"writes carry data", "a completion means delivery", "there is something to wait on"}, unordered...),
		0, 0, 0,
	},
	"psm3": {
		append([]string{"writes carry a proof", "a completion means delivery"}, unordered...),
		fabric.SendAfterSend, 1<<32 - 1<<12, 0,
	},
	"shm": {
		[]string{"there is something to wait on", "what is mapped is the peer's"},
		fabric.SendAfterSend | fabric.SendAfterWrite | fabric.WriteAfterWrite, 0, 0,
	},
}

// TestRules: nothing goes wrong on a fabric with the rules of a provider that we have no hardware for, or between
// processes that map each other's memory. As soon as the engine does not know of one of the rules, something does go
// wrong, with one of many seeds. So the engine heeds each rule, and the fabric enforces it.
func TestRules(t *testing.T) {
	const few, many = 20, 3000
	for _, preset := range simfabric.Presets() {
		if !preset.Hardware && !preset.SameHost {
			continue
		}
		p, name := preset.Personality, preset.Name
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(race.Fewer(few)) {
				require.NoError(t, try(t, p, seed, lie{}), "seed %d", seed)
			}
		})
		var has []string
		for rule, l := range lies {
			if !l.of(p) {
				continue
			}
			has = append(has, rule)
			if race.Enabled { // this takes thousands of seeds, and is shown without the race detector
				continue
			}
			t.Run(name+"/"+rule, func(t *testing.T) {
				for seed := range uint64(many) {
					if err := try(t, p, seed, l); err != nil {
						t.Logf("seed %d: %v", seed, err)
						return
					}
				}
				assert.Fail(t, "nothing goes wrong")
			})
		}
		want, listed := rules[name]
		require.True(t, listed, "which rules has %s?", name)
		assert.ElementsMatch(t, want.lies, has, name)
		assert.Equal(t, want.order, p.Order, "%s: order", name)
		assert.Equal(t, want.message, p.MaxMsgSize, "%s: longest message", name)
		assert.Equal(t, want.write, p.MaxRMASize, "%s: longest write", name)
	}
}

// try moves data over endpoints that lie, on virtual time, and returns what went wrong.
func try(t *testing.T, p simfabric.Personality, seed uint64, l lie) (err error) {
	synctest.Test(t, func(*testing.T) {
		sim := simfabric.Config{Seed: seed, Personality: p, Delay: 4 << (seed % 4), Straggle: 0.3, AgainRate: 0.05, CompletionReorder: true}
		cfg := Config{Ring: MinRing, Spin: -1, Budget: pool.NewBudget(64 << 20)}
		maps := l.maps
		if maps == nil {
			maps = opens
		}
		link, e := newLinkMapping(sim, cfg, l.tell, maps)
		if err = e; err == nil {
			err = link.trade(seed)
		}
		for _, e := range []*Endpoint{link.ea, link.eb} {
			if e != nil {
				err = errors.Join(err, e.Close())
			}
		}
		if s := link.net.Stats(); s.Misuse != "" || s.BadLocal+s.BadRemote+s.Truncated+s.SendsWithoutReceive > 0 {
			err = errors.Join(err, fmt.Errorf("%.100s %+v", s.Misuse, s))
		}
	})
	return err
}

// tell wraps an endpoint so that it lies.
func (l lie) tell(fe fabric.Endpoint) fabric.Endpoint {
	liar := &liar{Endpoint: fe, attr: fe.Attr(), lie: l}
	if l.claim != nil {
		l.claim(&liar.attr)
	}
	return liar
}

// trade moves data both ways over several conns, and in between gives up others amid writes of theirs.
func (l *link) trade(seed uint64) error {
	for round := range uint64(3) {
		if err := l.tradeOnce(seed<<8 | round); err != nil {
			return err
		}
		for range 3 {
			if err := l.giveUp(); err != nil {
				return err
			}
		}
	}
	return nil
}

// giveUp resets a conn that has a ring right after a write to it. The next conn gets that ring.
func (l *link) giveUp() error {
	a, b, err := l.open()
	if err != nil {
		return err
	}
	got := begin(func() error { return readN(b, 2*MinRing) })
	if err = errors.Join(writeN(a, 2*MinRing), <-got); err == nil {
		err = writeN(a, MinRing/2)
	}
	_ = a.SetLinger(0)
	_ = b.SetLinger(0)
	return errors.Join(err, a.Close(), b.Close())
}

func (l *link) tradeOnce(seed uint64) error {
	a, b, err := l.open()
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	var errs [4]error
	for i, c := range []*Conn{a, b} {
		data := make([]byte, 3*MinRing)
		other := []*Conn{b, a}[i]
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		for k := range data {
			data[k] = byte(rng.Uint32())
		}
		wg.Go(func() { errs[2*i] = give(c, data, rng) })
		wg.Go(func() { errs[2*i+1] = take(other, data) })
	}
	wg.Wait()
	return errors.Join(append(errs[:], a.Close(), b.Close())...)
}

// open opens a conn whose calls end within minutes.
func (l *link) open() (a, b *Conn, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if a, err = l.a.Open(ctx, 7); err != nil {
		return nil, nil, err
	}
	b = <-l.accept
	deadline := time.Now().Add(3 * time.Minute)
	return a, b, errors.Join(a.SetDeadline(deadline), b.SetDeadline(deadline))
}

func give(c *Conn, data []byte, rng *rand.Rand) error {
	for len(data) > 0 {
		n, err := c.Write(data[:min(len(data), 1+rng.IntN(MinRing))])
		if err != nil {
			return err
		}
		data = data[n:]
	}
	return c.CloseWrite()
}

func take(c *Conn, data []byte) error {
	time.Sleep(time.Second) // so that what is late lands before it is read
	got, err := io.ReadAll(c)
	if err == nil && !bytes.Equal(got, data) {
		err = fmt.Errorf("%d bytes arrived of %d, or they differ", len(got), len(data))
	}
	return err
}

// liar is an endpoint that denies a rule.
type liar struct {
	fabric.Endpoint
	attr fabric.Attr
	lie  lie
}

func (l *liar) Attr() fabric.Attr { return l.attr }

func (l *liar) Exchange(ops []fabric.Op, done []fabric.Completion) (posted, reaped int, err error) {
	if l.lie.op != nil {
		ops = slices.Clone(ops)
		for i := range ops {
			l.lie.op(&ops[i])
		}
	}
	return l.Endpoint.Exchange(ops, done)
}

// Register leaves local memory alone where none has to be registered, as ofifabric does.
func (l *liar) Register(mem []byte, access pool.Access) (pool.Region, error) {
	if access == pool.AccessLocal && l.Endpoint.Attr().LocalMR != l.attr.LocalMR {
		return nowhere{}, nil
	}
	r, err := l.Endpoint.Register(mem, access)
	if err == nil && l.lie.offsets {
		r = offset{r}
	}
	return r, err
}

func (l *liar) Waiter() fabric.Waiter {
	if l.lie.waits {
		return deaf{simfabric.NewBell(), simfabric.NewBell()}
	}
	return l.Endpoint.Waiter()
}

type nowhere struct{ pool.Region }

func (nowhere) Desc() uintptr { return 0 }
func (nowhere) Close() error  { return nil }

type offset struct{ pool.Region }

func (offset) Base() uint64 { return 0 }

// deaf is a wait object that hears of no arrival.
type deaf struct{ bell, watcher fabric.Bell }

func (d deaf) TryWait() (bool, error) { return true, nil }
func (d deaf) Bell() fabric.Bell      { return d.bell }
func (d deaf) Watcher() fabric.Bell   { return d.watcher }
func (deaf) Watch(bool) bool          { return false }
