//go:build linux && cgo

package systemtest

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/bootstrap"
	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/internal/fabric/ofifabric"
	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

func init() { rdmatest.Roles["liar"] = lieOften }

// liarTime bounds the handshake of a liar, of which many do not come to an end. floodTime is how long a
// flood takes, unless the listener ends it.
const (
	liarTime  = time.Second
	floodTime = 200 * time.Millisecond
)

// liar is a hostile peer that lies about itself, at random, in its hello, its page, its endpoint's name
// and the rest of its Attach. If it is let in all the same, it floods what it can reach.
type liar struct {
	*hostile
	r *rand.Rand
}

// lieOften reads seeds from its standard input, and prints what came of a liar with each.
func lieOften(provider, addr string) error {
	infos, err := ofifabric.New().Providers(netip.MustParseAddr(testenv.Host()))
	if err != nil {
		return err
	}
	infos = slices.DeleteFunc(infos, func(i fabric.ProviderInfo) bool { return i.Name != provider })
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		seed, err := strconv.ParseUint(in.Text(), 10, 64)
		if err != nil {
			return err
		}
		l := &liar{&hostile{provider: provider, infos: infos, slots: hostileRecvs, ended: make(chan error, 1)}, rand.New(&lockedSource{source: rand.NewPCG(seed, 0)})}
		fmt.Println(strings.ReplaceAll(l.lie(addr), "\n", "; "))
	}
	return in.Err()
}

// lie meets the listener once.
func (l *liar) lie(addr string) string {
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		return err.Error()
	}
	l.tcp = nc
	ctx, cancel := context.WithTimeout(context.Background(), liarTime)
	defer cancel()
	s, _, err := bootstrap.Dial(ctx, &scribbler{nc, l}, bootstrap.Config{}, l)
	if err != nil {
		l.leave()
		return "kept out: " + err.Error()
	}
	l.number = s.Remote().Listener
	s.Start(l)
	floods := []func() error{l.flood(framing.TypeOpen), l.flood(framing.TypeCredit), l.flood(framing.TypeWant), l.rings, l.beats, l.scribbles}
	l.greedy = l.r.IntN(2) == 0
	err = floods[l.r.IntN(len(floods))]()
	l.leave()
	if err != nil {
		return "let in: " + err.Error()
	}
	return "let in"
}

// lockedSource may be used by several goroutines: while the liar is at its path check, its handshake asks
// whether the other side is there.
type lockedSource struct {
	mu     sync.Mutex // guards source
	source rand.Source
}

func (l *lockedSource) Uint64() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.source.Uint64()
}

// one reports true once in n times.
func (l *liar) one(n int) bool { return l.r.IntN(n) == 0 }

func (l *liar) noise(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(l.r.Uint32())
	}
	return b
}

func (l *liar) Hello() framing.Hello {
	h := l.hostile.Hello()
	switch l.r.IntN(8) {
	case 0:
		h.Host = [16]byte(l.noise(16))
	case 1:
		h.UID = l.r.Uint32()
	case 2:
		h.HostUnknown = string(l.noise(64))
	}
	return h
}

func (l *liar) Prepare(ctx context.Context, offer framing.Offer, peer *bootstrap.Peer, local netip.Addr, page *bootstrap.Page) (bootstrap.Binding, error) {
	_, err := l.hostile.Prepare(ctx, offer, peer, local, page)
	return l, err
}

// Local lies in one field, or in none.
func (l *liar) Local() framing.Attach {
	a := l.hostile.Local()
	switch l.r.IntN(10) {
	case 0:
		a.Name = l.noise(1 + l.r.IntN(512))
	case 1:
		a.Name = rdmatest.NameOf(&net.TCPAddr{IP: l.noise(4), Port: l.r.IntN(1 << 16)})
	case 2:
		a.Name = l.remote.Name // the listener's own
	case 3:
		a.Name = slices.Concat(a.Name, l.noise(16))
	case 4:
		a.Peer = l.r.Uint32()
	case 5:
		a.Token = l.remote.Token
	case 6:
		a.Slots = l.r.Uint32N(1 << 21)
	case 7:
		a.Eager = l.r.Uint32N(1 << 17)
	}
	l.local = a
	return a
}

func (l *liar) Check(context.Context) error {
	if l.one(4) {
		return nil
	}
	return l.check()
}

// leave is hostile.leave for one that may not have come far.
func (l *liar) leave() {
	if l.session != nil {
		_ = l.session.Close()
	}
	_ = l.tcp.Close()
	if l.fab != nil {
		l.free()
	}
}

// scribbler is the liar's end of the control connection. Before it sends a message, the liar may alter
// its page, in which it says who it is, and which the other side has mapped from some message on.
type scribbler struct {
	net.Conn
	l *liar
}

func (s *scribbler) Write(b []byte) (int, error) {
	if s.l.one(4) {
		_ = s.l.scribble(1)
	}
	return s.Conn.Write(b)
}

// scribble alters the page n times: anywhere, or where the two sides' flags are, or what they say of
// themselves.
func (l *liar) scribble(n int) error {
	list, err := os.ReadDir("/proc/self/map_files")
	if err != nil {
		return err
	}
	for _, e := range list {
		to, err := os.Readlink("/proc/self/map_files/" + e.Name())
		if err != nil || !strings.HasPrefix(to, "/dev/shm/fabricnet-") || strings.Contains(to[len("/dev/shm/fabricnet-"):], ".") {
			continue // it is no page
		}
		f, err := os.OpenFile("/proc/self/map_files/"+e.Name(), os.O_RDWR, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		info, err := f.Stat()
		if err != nil {
			return err
		}
		for range n {
			at := l.r.Int64N(info.Size() - 16)
			if l.one(2) {
				at = 64 + l.r.Int64N(384)
			}
			if _, err := f.WriteAt(l.noise(1+l.r.IntN(16)), at); err != nil {
				return err
			}
		}
	}
	return nil
}

// flood returns what sends many frames of one type.
func (l *liar) flood(t framing.Type) func() error {
	return func() error {
		for i, begin := 0, time.Now(); time.Since(begin) < floodTime; i++ {
			f := frame{Header: framing.Header{Type: t, Stream: 1}}
			if t == framing.TypeOpen {
				f = l.opening(uint32(i+1), l.number)
			}
			if err := l.send(f); err != nil {
				return err
			}
		}
		return nil
	}
}

func (l *liar) beats() error {
	for begin := time.Now(); time.Since(begin) < floodTime; {
		if _, err := l.tcp.Write(slices.Repeat(framing.AppendHeartbeat(nil, 0), 1000)); err != nil {
			return err
		}
	}
	return nil
}

// rings rings both bells, if there are any, and has either side's flag say anything.
func (l *liar) rings() error {
	if page := l.session.Page(); page != nil {
		d := page.Doorbell()
		for begin := time.Now(); time.Since(begin) < floodTime; {
			d.Ring(l.r.IntN(2) == 0)
			flag := d.Own
			if l.r.IntN(2) == 0 {
				flag = d.Peer
			}
			flag.Store(l.r.Uint32N(4))
		}
	}
	return nil
}

func (l *liar) scribbles() error {
	for begin := time.Now(); time.Since(begin) < floodTime; {
		if err := l.scribble(50); err != nil {
			return err
		}
		if err := l.ping(); err != nil {
			return err
		}
	}
	return nil
}

// TestLiars: whatever peers say of themselves, and whatever they flood, a good client goes on, and what
// they took is given back.
func TestLiars(t *testing.T) {
	limit := time.Duration(rdmatest.Rounds(15, 600)) * time.Second
	for _, provider := range rdmatest.Providers {
		t.Run(provider, func(t *testing.T) {
			tr, other := new(rdmanet.Transport), new(rdmanet.Transport)
			rdmatest.Cleanly(t, tr)
			t.Cleanup(func() { assert.NoError(t, other.Close()) })
			l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr, Providers: []string{provider}})
			var served sync.WaitGroup
			served.Go(func() { rdmatest.ServeEcho(l) })
			good := rdmatest.NewGoodClient(t, &rdmanet.Dialer{Transport: other, Providers: []string{provider}}, l.Addr().String())
			cmd := rdmatest.Process(t, "liar", provider, l.Addr().String())
			stdin, stdout := rdmatest.Start(t, cmd)
			outcomes := make(map[string]int)
			seed := rand.Uint64()
			for begin := time.Now(); ; seed++ {
				elapsed := time.Since(begin)
				both := outcomes["let in"] > 0 && outcomes["kept out"] > 0
				if both && elapsed > limit || elapsed > limit+rdmatest.Patience {
					break
				}
				_, err := fmt.Fprintln(stdin, seed)
				require.NoError(t, err)
				answer := rdmatest.Line(t, stdout)
				good.Works(t, fmt.Sprint("after the liar of seed ", seed, ": ", answer))
				kind, _, _ := strings.Cut(answer, ":")
				outcomes[kind]++
			}
			t.Logf("%v, up to seed %d", outcomes, seed)
			assert.Positive(t, outcomes["let in"])
			assert.Positive(t, outcomes["kept out"])
			require.NoError(t, stdin.Close())
			require.NoError(t, cmd.Wait())
			good.Stop(t)
			require.NoError(t, l.Close())
			served.Wait()
			rdmatest.Eventually(t, func() bool { return tr.Stats().Peers <= 1 }, "the liars are gone")
		})
	}
}
