package engine

import (
	"bytes"
	"os"
	"reflect"
	"runtime/trace"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
)

// TestBytesAreCounted: each side counts as received what the other counts as sent, for each way that bytes go.
func TestBytesAreCounted(t *testing.T) {
	const small, large = 100, 300 << 10
	for _, name := range []string{"shm", "tcp", "verbs", "saw", "deliver/awkward", "no large data"} {
		t.Run(name, func(t *testing.T) {
			l, a, b := newConns(t, personalities()[name], Config{})
			if name != "no large data" {
				warmUp(t, a, b)
			}
			n := a.Seen()
			total := n.SmallOut + n.LargeOut
			for _, size := range []int{small, large, large, small} {
				total += uint64(size)
				carry(t, a, b, size)
			}
			out, in := l.ea.Stats(), l.eb.Stats()
			assert.Equal(t, total, out.SmallSent+out.RDMABytesSent)
			assert.Equal(t, total, in.SmallReceived+in.RDMABytesReceived)
			assert.Equal(t, out.SmallSent, in.SmallReceived)
			assert.Equal(t, name == "no large data", out.RDMABytesSent == 0)
			assert.Equal(t, out.RDMAWrites, in.RDMAWritesReceived)
			assert.Equal(t, total, out.Copies.Staged+out.Copies.Mapped)
			assert.Equal(t, name == "shm", out.Copies.Mapped != 0)
			assert.Zero(t, out.Copies.Unstaged+in.Copies.Lent)
			n = a.Seen()
			assert.Equal(t, Counters{SmallOut: out.SmallSent, LargeOut: out.RDMABytesSent}, n)
			assert.Zero(t, out.SmallReceived+out.RDMABytesReceived+in.SmallSent+in.RDMABytesSent)
			closeConns(t, a, b)
		})
	}
}

// TestCopiesAreCounted: Stats counts the bytes that SendBuffer sends from where they are, those
// that RecvBuffer lends where they have landed, and those that wait for a Read.
func TestCopiesAreCounted(t *testing.T) {
	const size, late = 128 << 10, 1000
	l, a, b := newConns(t, personalities()["tcp"], Config{})
	require.NoError(t, writeN(a, late))
	comesTrue(t, func() bool { return l.eb.Stats().Copies.Reassembled == late })
	require.NoError(t, readN(b, late))
	for n := 0; n < 3; { // with a ring
		if a.Seen().LargeOut > 0 {
			n++
		}
		buf := allocBuffer(t, a, size)
		sent := begin(func() error { return sendBuffer(a, buf) })
		for got := 0; got < size; {
			piece, err := b.RecvBuffer()
			require.NoError(t, err)
			got += len(piece.Bytes())
			piece.Release()
		}
		require.NoError(t, <-sent)
	}
	out, in := l.ea.Stats(), l.eb.Stats()
	assert.Equal(t, out.RDMABytesSent, out.Copies.Unstaged)
	assert.Equal(t, out.SmallSent, out.Copies.Staged, "until there was a ring")
	assert.GreaterOrEqual(t, out.Copies.Unstaged, uint64(3*size))
	assert.Equal(t, in.RDMABytesReceived, in.Copies.Lent)
	closeConns(t, a, b)
}

// refusals counts operations that the fabric took after it had refused them. The engine's lock is enough for it.
type refusals struct {
	fabric.Endpoint
	refused [2]bool // sends, receives
	retries [2]uint64
}

func (r *refusals) Exchange(ops []fabric.Op, done []fabric.Completion) (int, int, error) {
	posted, reaped, err := r.Endpoint.Exchange(ops, done)
	sends := slices.IndexFunc(ops, func(op fabric.Op) bool { return op.Kind == fabric.Recv })
	if sends < 0 {
		sends = len(ops)
	}
	r.note(0, min(posted, sends), sends, err)
	if posted >= sends {
		r.note(1, posted-sends, len(ops)-sends, err)
	}
	return posted, reaped, err
}

// note records that the fabric took the first posted of n operations of one kind.
func (r *refusals) note(kind, posted, n int, err error) {
	if n == 0 {
		return
	}
	if posted > 0 && r.refused[kind] {
		r.retries[kind]++
	}
	r.refused[kind] = posted < n && err == nil
}

// TestRetriesAreCounted: all retries are counted, on a fabric that refuses now and then.
func TestRetriesAreCounted(t *testing.T) {
	sim := simfabric.Config{Seed: 1, Personality: simfabric.TCP(), AgainRate: 0.3}
	l, ends := newLinkOn(t, sim, Config{}, func(e fabric.Endpoint) *refusals { return &refusals{Endpoint: e} })
	a, b := l.dial(t)
	echoed := begin(func() error { return echo(b, 64) })
	for range 200 {
		require.NoError(t, roundTrip(a, make([]byte, 64)))
	}
	closeConns(t, a)
	require.NoError(t, <-echoed)
	closeConns(t, b)
	l.close(t)
	for i, e := range []*Endpoint{l.ea, l.eb} {
		n := ends[i].retries
		assert.Positive(t, n[0])
		assert.Positive(t, n[1])
		assert.Equal(t, n[0]+n[1], e.Stats().Retries)
	}
}

// TestPollsAreCounted: polls are counted, both those that find something and those that do not.
func TestPollsAreCounted(t *testing.T) {
	l, a, b := newConns(t, personalities()["tcp"], Config{})
	before := l.eb.Stats()
	comesTrue(t, func() bool { // a Read that polls in vain parks, and its polls are then counted
		require.NoError(t, b.SetReadDeadline(time.Now().Add(5*time.Millisecond)))
		require.Error(t, readN(b, 1))
		return l.eb.Stats().PollsEmpty > before.PollsEmpty
	})
	require.NoError(t, b.SetReadDeadline(time.Time{}))
	full := func(s Stats) uint64 { return s.Polls - s.PollsEmpty }
	before = l.eb.Stats()
	carry(t, a, b, 1)
	after := l.eb.Stats()
	assert.Greater(t, full(after), full(before))
	assert.GreaterOrEqual(t, after.Reaped, full(after), "a poll that is not empty finds one or more")
	closeConns(t, a, b)
}

// TestStatsNeverFall: no counter falls while Stats is called during transfers.
func TestStatsNeverFall(t *testing.T) {
	l := newLink(t, personalities()["cqdata/awkward"], Config{})
	a, b := l.dial(t)
	drained := begin(func() error { return drain(b, 10<<10) })
	var last [2]Stats
	for range 300 {
		require.NoError(t, writeN(a, 20<<10))
		for i, e := range []*Endpoint{l.ea, l.eb} {
			s := e.Stats()
			notLess(t, reflect.ValueOf(last[i]), reflect.ValueOf(s), "Stats")
			last[i] = s
		}
	}
	require.NoError(t, a.Close())
	require.NoError(t, <-drained)
	require.NoError(t, b.Close())
	l.close(t)
	for i, e := range []*Endpoint{l.ea, l.eb} {
		notLess(t, reflect.ValueOf(last[i]), reflect.ValueOf(e.Stats()), "Stats at the end")
	}
}

func notLess(t *testing.T, old, v reflect.Value, name string) {
	t.Helper()
	switch v.Kind() {
	case reflect.Uint64:
		require.GreaterOrEqual(t, v.Uint(), old.Uint(), name)
	case reflect.Struct:
		for i := range v.NumField() {
			notLess(t, old.Field(i), v.Field(i), name+"."+v.Type().Field(i).Name)
		}
	}
}

// mute is an endpoint that can be made to hang in a call, and is not rescued.
type mute struct {
	fabric.Endpoint
	enter chan chan struct{} // a call that finds one here waits for it to be closed
}

func (*mute) Rescue() bool { return false }

func (h *mute) Exchange(ops []fabric.Op, done []fabric.Completion) (int, int, error) {
	if len(ops) > 0 {
		select {
		case until := <-h.enter:
			<-until
		default:
		}
	}
	return h.Endpoint.Exchange(ops, done)
}

// TestLooksDoNotHang: while a call hangs with the lock held, Stats is what was last seen, and States knows nothing.
func TestLooksDoNotHang(t *testing.T) {
	l, ends := newLinkOn(t, personalities()["shm"], Config{}, func(e fabric.Endpoint) *mute {
		return &mute{Endpoint: e, enter: make(chan chan struct{}, 1)}
	})
	defer l.close(t)
	a, b := l.dial(t)
	before := l.ea.Stats()
	require.Positive(t, before.FramesSent)
	assert.Equal(t, Open, l.ea.States([]*Conn{a})[0].Phase)
	until := make(chan struct{})
	ends[0].enter <- until
	written := begin(func() error { return writeN(a, 1) })
	comesTrue(t, func() bool { return len(ends[0].enter) == 0 })
	assert.Equal(t, before.FramesSent, l.ea.Stats().FramesSent)
	assert.Equal(t, []State{{}, {}}, l.ea.States([]*Conn{a, a}))
	l.ea.last.Store(nil) // as if nobody had looked before
	assert.Equal(t, 1, l.ea.Stats().Endpoints, "it is counted all the same")
	close(until)
	require.NoError(t, <-written)
	assert.Greater(t, l.ea.Stats().FramesSent, before.FramesSent)
	closeConns(t, a, b)
}

// TestStates: States follows two conns from their beginning to their end.
func TestStates(t *testing.T) {
	l, a, b := newConns(t, personalities()["shm"], Config{})
	at := func(c *Conn) State { return c.e.States([]*Conn{c})[0] }
	becomes := func(c *Conn, want func(State) bool) {
		t.Helper()
		comesTrue(t, func() bool { return want(at(c)) }, "%+v", at(c))
	}
	phase := func(p Phase) func(State) bool { return func(s State) bool { return s.Phase == p } }

	read := begin(func() error { return readN(b, 3) })
	becomes(b, func(s State) bool { return s.Reading && s.Phase == Open })
	mustWrite(t, a, []byte("abc"))
	require.NoError(t, <-read)
	becomes(b, func(s State) bool { return !s.Reading && s.Unread == 0 && s.SmallIn == 3 })
	mustWrite(t, a, []byte("defg"))
	becomes(b, func(s State) bool { return s.Unread == 4 })
	assert.Equal(t, WaitsNothing, at(a).Waits)

	const size = 8 << 20 // more than anybody holds
	written := begin(func() error { return writeN(a, size) })
	becomes(a, func(s State) bool { return s.Waits == WaitsRing })
	becomes(b, func(s State) bool { return s.LargeIn > 0 && s.Unread == s.SmallIn+s.LargeIn-3 })
	require.NoError(t, readN(b, size+4))
	require.NoError(t, <-written)
	becomes(b, func(s State) bool { return s.Unread == 0 })

	require.NoError(t, a.CloseWrite())
	becomes(a, phase(WriteClosed))
	becomes(b, phase(ReadClosed))
	require.NoError(t, b.CloseWrite())
	becomes(b, phase(Ended))
	becomes(a, phase(Ended))
	closeConns(t, a, b)

	a, b = l.dial(t)
	resetConns(t, b)
	becomes(a, phase(Reset))
	require.NoError(t, a.Close())
}

// TestStateOfClose: the state says that Close waits for a peer that takes nothing.
func TestStateOfClose(t *testing.T) {
	l, a, b := newConns(t, personalities()["tcp"], Config{})
	require.NoError(t, writeN(a, 100))
	l.eb.mu.Lock() // nothing is answered
	closed := begin(func() error { return a.Close() })
	waits := assert.Eventually(t, func() bool {
		s := l.ea.States([]*Conn{a})[0]
		return s.Phase == Closing && s.Waits == WaitsDelivery
	}, 3*time.Second, time.Millisecond)
	l.eb.mu.Unlock()
	require.True(t, waits)
	require.NoError(t, <-closed)
	require.NoError(t, b.Close())
}

// TestTrace: an execution trace shows which calls wait.
func TestTrace(t *testing.T) {
	l := newLink(t, personalities()["tcp"], Config{Spin: -1})
	defer l.close(t)
	var buf bytes.Buffer
	require.NoError(t, trace.Start(&buf))
	a, b := l.dial(t)
	for _, call := range []func(*Conn, int) error{readN, writeN} {
		parks := l.ea.Stats().Parks
		ended := begin(func() error { return call(a, 64<<20) })
		comesTrue(t, func() bool {
			s := l.ea.States([]*Conn{a})[0]
			return (s.Reading || s.Waits != WaitsNothing) && l.ea.Stats().Parks > parks
		})
		require.NoError(t, a.SetDeadline(time.Now()))
		require.ErrorIs(t, <-ended, os.ErrDeadlineExceeded)
		require.NoError(t, a.SetDeadline(time.Time{}))
	}
	trace.Stop()
	for _, name := range []string{"rdmanet.Read", "rdmanet.Write"} {
		assert.True(t, bytes.Contains(buf.Bytes(), []byte(name)), name)
	}
	resetConns(t, b)
	closeConns(t, a)
}
