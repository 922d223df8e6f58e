//go:build linux && cgo

package systemtest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric/ofifabric"
	"github.com/seed202c38ff/fabricnet/internal/race"
	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

func init() { rdmatest.Roles["member"] = member }

// member is one of many client processes. It prints "here" once libfabric is loaded, which
// costs a process 100 milliseconds of a processor. Then it dials for each line that it reads,
// prints how that went, and does on the conn what the listening side says.
func member(providers, addr string) error {
	if _, err := ofifabric.New().Providers(netip.MustParseAddr(testenv.Host())); err != nil {
		return err
	}
	fmt.Println("here")
	d := rdmanet.Dialer{Providers: rdmatest.ProviderList(providers), Timeout: 3 * rdmatest.Patience}
	var conns sync.WaitGroup
	var mu sync.Mutex
	var failed []error
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		start := time.Now()
		c, err := d.Dial("rdma", addr)
		took := time.Since(start)
		if err != nil {
			fmt.Println(took.Microseconds(), "failed:", err)
			continue
		}
		fmt.Println(took.Microseconds(), "through", c.(*rdmanet.Conn).Info().Provider)
		conns.Go(func() {
			err := rdmatest.Obey(c.(*rdmanet.Conn))
			mu.Lock()
			defer mu.Unlock()
			failed = append(failed, err)
		})
	}
	conns.Wait()
	return errors.Join(failed...)
}

// memberProcess is a member as the listening side sees it.
type memberProcess struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// dialed is what a member prints about a Dial.
type dialed struct {
	took     time.Duration
	provider string
	err      error
}

// tell makes the member dial.
func (m *memberProcess) tell() error {
	_, err := fmt.Fprintln(m.in)
	return err
}

// dialed waits for what the member prints about a Dial.
func (m *memberProcess) dialed() (d dialed) {
	text, err := m.out.ReadString('\n')
	if err != nil {
		return dialed{err: err}
	}
	took, rest, _ := strings.Cut(strings.TrimSpace(text), " ")
	us, err := strconv.Atoi(took)
	d = dialed{took: time.Duration(us) * time.Microsecond, err: err}
	if provider, ok := strings.CutPrefix(rest, "through "); ok {
		d.provider = provider
	} else {
		d.err = errors.Join(err, errors.New(rest))
	}
	return d
}

// leave makes the member end, which it does without an error once all its conns have ended.
func (m *memberProcess) leave(t *testing.T) {
	t.Helper()
	_ = m.in.Close()
	assert.NoError(t, m.cmd.Wait())
}

// end is leave for a member whose conns were reset, so that it ends with an error.
func (m *memberProcess) end(t *testing.T) {
	t.Helper()
	_ = m.in.Close()
	_, _ = io.Copy(io.Discard, m.out)
	_ = m.cmd.Wait()
}

// startMembers starts n members, a few at a time, and waits until they are ready to dial.
func startMembers(t *testing.T, n int, providers []string, addr string) []*memberProcess {
	t.Helper()
	members := make([]*memberProcess, n)
	for some := range slices.Chunk(members, 4) {
		for i := range some {
			cmd := rdmatest.Process(t, "member", strings.Join(providers, ","), addr)
			in, out := rdmatest.Start(t, cmd)
			some[i] = &memberProcess{cmd, in, out}
		}
		for _, m := range some {
			require.Equal(t, "here", rdmatest.Line(t, m.out))
		}
	}
	return members
}

// haveDial makes all members dial at once.
func haveDial(t *testing.T, members []*memberProcess) []dialed {
	t.Helper()
	all := make([]dialed, len(members))
	var wg sync.WaitGroup
	for i, m := range members {
		wg.Go(func() {
			if all[i].err = m.tell(); all[i].err == nil {
				all[i] = m.dialed()
			}
		})
	}
	wg.Wait()
	return all
}

// scale says how many members take part in a test over one provider, and over the next one
// beyond the first one's limit.
type scale struct {
	providers []string
	members   int
	shm       int // MaxShmPeers
	want      map[string]int
}

// scales returns a scale with that many members for each provider, but no more than 100 for shm.
func scales(members int) (list []scale) {
	for _, provider := range rdmatest.Providers {
		s := scale{providers: []string{provider}, members: members}
		s.want = map[string]int{provider: s.members}
		if provider == "shm" {
			s.members, s.shm = min(members, 100), rdmatest.AllRounds(members/2, 0)
			s.providers = append(s.providers, "tcp;ofi_rxm")
			most := s.shm
			if most == 0 {
				most = rdmanet.DefaultMaxShmPeers
			}
			s.want = map[string]int{provider: most, "tcp;ofi_rxm": s.members - most}
		}
		list = append(list, s)
	}
	return list
}

// TestScale: one listener, with the default memory limit, serves hundreds of processes at
// once. When they are idle, a newcomer gets in as fast, and is then as fast, as if it were
// alone.
func TestScale(t *testing.T) {
	rdmatest.Noise() // made now, so that it does not count as memory in use
	for _, s := range scales(rdmatest.AllRounds(16, 250)) {
		t.Run(s.providers[0], func(t *testing.T) {
			tr := &rdmanet.Transport{MaxShmPeers: s.shm}
			rdmatest.CleanlyBut(t, 2, tr)
			l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr, Providers: s.providers, Backlog: s.members})
			members := startMembers(t, s.members, s.providers, l.Addr().String())
			start := time.Now()
			conns, got := gather(t, l, members)
			t.Logf("%d processes are in after %v: %v", s.members, time.Since(start), got)
			assert.Equal(t, s.want, got)

			memory := watchMemory(t, tr)
			start = time.Now()
			allAtOnce(t, l, members, conns)
			t.Logf("round trips, and a mebibyte each way for each: %v", time.Since(start))
			memory()

			rdmatest.Eventually(t, func() bool {
				landing := int64(0)
				for _, p := range tr.Stats().Providers {
					landing += p.LandingMemory
				}
				return landing == 0
			}, "they are idle")
			newcomers(t, l, s.providers[len(s.providers)-1:], s.members)
			for _, c := range conns {
				rdmatest.CloseAll(t, c)
			}
			for _, m := range members {
				m.leave(t)
			}
		})
	}
}

// gather makes members dial, a few at a time, and counts them by provider.
func gather(t *testing.T, l *rdmanet.Listener, members []*memberProcess) (conns []*rdmanet.Conn, providers map[string]int) {
	t.Helper()
	providers = make(map[string]int)
	for some := range slices.Chunk(members, 8) {
		for i, d := range haveDial(t, some) {
			require.NoError(t, d.err, "member %d", len(conns)+i)
			providers[d.provider]++
		}
		for range some {
			c := rdmatest.Accept(t, l)
			rdmatest.Instruct(t, c, rdmatest.Order{Duty: rdmatest.Answer})
			conns = append(conns, c)
		}
	}
	return conns, providers
}

// allAtOnce makes all members do round trips on the conns that they have, and exchange a
// mebibyte each way on another one, all at once.
func allAtOnce(t *testing.T, l *rdmanet.Listener, members []*memberProcess, conns []*rdmanet.Conn) {
	t.Helper()
	var wg sync.WaitGroup
	for i, c := range conns {
		wg.Go(func() { assert.NoError(t, answered(c, uint64(2*i), 200)) })
	}
	wg.Go(func() {
		for i, d := range haveDial(t, members) {
			assert.NoError(t, d.err, "member %d", i)
		}
	})
	all := slices.Clone(conns)
	for i := range members {
		c := rdmatest.Accept(t, l)
		all = append(all, c)
		o := rdmatest.Order{Duty: rdmatest.Exchange, Key: uint64(22 * i), Size: 1 << 20} // in one piece, or in more where that would reach beyond the end of noise
		wg.Go(func() {
			rdmatest.Instruct(t, c, o)
			assert.NoError(t, o.CarryOut(c, o.Key+1, rdmatest.Patience))
		})
	}
	rdmatest.Within(t, time.Minute, all, wg.Wait)
}

// answered sends messages that the other side sends back, and compares.
func answered(c *rdmanet.Conn, key uint64, times int) error {
	s := rdmatest.Tide{Key: key}
	buf := make([]byte, 4<<10)
	for i := range times {
		out := s.Ahead(1 + i*i%len(buf))
		if _, err := c.Write(out); err != nil {
			return err
		}
		if _, err := io.ReadFull(c, buf[:len(out)]); err != nil {
			return err
		}
		if !bytes.Equal(out, buf[:len(out)]) {
			return fmt.Errorf("round trip %d of conn %d brings something else", i, key)
		}
		s.Pos += len(out)
	}
	return nil
}

// watchMemory returns a function that logs how much memory a Transport has used at most, and how
// much more the process has than now. It checks that the Transport has kept to its limit.
func watchMemory(t *testing.T, tr *rdmanet.Transport) (end func()) {
	t.Helper()
	before := resident()
	return func() {
		m, now := tr.Stats().Memory, resident()
		t.Logf("%d MiB of memory in use at most, of %d; %d MiB resident, %d MiB more than before", m.High>>20, m.Limit>>20, now>>20, (now-before)>>20)
		assert.LessOrEqual(t, m.High, m.Limit)
	}
}

// newcomer is a process that came last, and two conns of it.
type newcomer struct {
	*memberProcess
	answers, takes *rdmanet.Conn
}

// come makes a newcomer dial, and returns how long it took until it had answered.
func come(t *testing.T, l *rdmanet.Listener, providers []string) (n newcomer, took time.Duration) {
	t.Helper()
	n.memberProcess = startMembers(t, 1, providers, l.Addr().String())[0]
	start := time.Now()
	require.NoError(t, n.tell())
	n.answers = rdmatest.Accept(t, l)
	rdmatest.Instruct(t, n.answers, rdmatest.Order{Duty: rdmatest.Answer})
	require.NoError(t, answered(n.answers, 1, 1))
	took = time.Since(start)
	require.NoError(t, n.dialed().err)
	require.NoError(t, n.tell())
	n.takes = rdmatest.Accept(t, l)
	rdmatest.Instruct(t, n.takes, rdmatest.Order{Duty: rdmatest.Sink})
	require.NoError(t, n.dialed().err)
	return n, took
}

func (n newcomer) leave(t *testing.T) {
	t.Helper()
	rdmatest.CloseAll(t, n.answers, n.takes)
	n.memberProcess.leave(t)
}

// newcomers compares processes that come to a listener with many peers and to one that has
// none, in turns. They use providers at both.
func newcomers(t *testing.T, crowded *rdmanet.Listener, providers []string, members int) {
	t.Helper()
	lone := new(rdmanet.Transport)
	defer func() { assert.NoError(t, lone.Close()) }()
	empty := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: lone, Providers: providers})
	var took [2][]time.Duration
	var last [2]newcomer
	for turn := range rdmatest.AllRounds(2, 9) {
		for i, l := range []*rdmanet.Listener{empty, crowded} {
			if turn > 0 {
				last[i].leave(t)
			}
			var d time.Duration
			last[i], d = come(t, l, providers)
			took[i] = append(took[i], d)
		}
	}
	for i := range took {
		slices.Sort(took[i])
	}
	t.Logf("newcomers get their first answer after %v; with %d others %v", took[0], members, took[1])
	bound := 2 * time.Second
	if *rdmatest.Soak && !race.Enabled { // on a machine with nothing else to do
		bound = 100 * time.Millisecond
	}
	assert.Less(t, took[1][len(took[1])/2], bound)
	assert.Less(t, slices.Max(took[1]), max(bound, 2*slices.Max(took[0])), "the slowest")
	for what, rate := range map[string]func(n newcomer) float64{
		"64 bytes there and back": func(n newcomer) float64 { return rateOf(t, n.answers, 64, true) },
		"a mebibyte there":        func(n newcomer) float64 { return rateOf(t, n.takes, 1<<20, false) },
	} {
		t.Logf("%s, with %d others:", what, members)
		rdmatest.Compare(t, rdmatest.Rounds(3, 15), 0.8, func() float64 { return rate(last[0]) }, func() float64 { return rate(last[1]) })
	}
	last[0].leave(t)
	last[1].leave(t)
}

// rateOf returns how many bytes a second can be written, in pieces of size bytes. If back is
// set, each piece is written once the one before has come back.
func rateOf(t *testing.T, c *rdmanet.Conn, size int, back bool) float64 {
	t.Helper()
	buf := make([]byte, size)
	start, n := time.Now(), 0
	for time.Since(start) < 100*time.Millisecond {
		_, err := c.Write(rdmatest.Noise()[:size])
		if err == nil && back {
			_, err = io.ReadFull(c, buf)
		}
		require.NoError(t, err)
		n += size
	}
	return float64(n) / time.Since(start).Seconds()
}
