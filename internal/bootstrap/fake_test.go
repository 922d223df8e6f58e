package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/seed202c38ff/fabricnet/framing"
)

// TestMain gives the tests their own directory for pages.
func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "pages")
	if err != nil {
		panic(err)
	}
	pageDir = dir + "/"
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		os.RemoveAll(dir)
		os.Exit(code)
	}))
}

// fakeBinder is the layer above, with a fabric that works, or fails where a test
// says so. The keys of the maps are provider names.
type fakeBinder struct {
	hello                   framing.Hello
	offerErr, authErr       error
	prepare, connect, check map[string]error
	hang                    map[string]bool
	checked                 func() // called by Check, which then succeeds
	connecting              func() // called by Connect
	unadmitted              error
	authorised              func(ctx context.Context, peer *Peer)
	ask, answer             *framing.Join
	unjoined                error
	met                     *Peer         // what Met was given
	asked, answered         *framing.Join // what Join and Joined were given

	mu       sync.Mutex
	bindings []*fakeBinding
	expected []string
}

type fakeBinding struct {
	b       *fakeBinder
	offer   framing.Offer
	peer    *Peer
	page    *Page
	remote  framing.Attach
	checked bool
	refused []string
	session *Session
	aborted error
	ended   time.Time // when it was aborted
}

func newBinder(offers ...framing.Offer) *fakeBinder {
	return &fakeBinder{hello: framing.Hello{
		Process: [16]byte{1}, Host: [16]byte{2}, UID: 3, Listener: 4, Offers: offers,
	}}
}

func offer(provider string) framing.Offer {
	return framing.Offer{Provider: provider, Protocol: 7, ProtocolVersion: 1, Library: "1.17", SameHost: provider == "shm"}
}

func (b *fakeBinder) Hello() framing.Hello {
	h := b.hello
	h.Offers, h.Unoffered = nil, nil
	return h
}

func (b *fakeBinder) Offer(_ context.Context, _ netip.Addr, h *framing.Hello) error {
	h.Offers, h.Unoffered = b.hello.Offers, b.hello.Unoffered
	return b.offerErr
}

func (b *fakeBinder) Authorize(ctx context.Context, peer *Peer) error {
	if b.authorised != nil {
		b.authorised(ctx, peer)
	}
	if b.authErr == nil {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrUnauthorized, b.authErr.Error())
}

func (b *fakeBinder) Expect(o framing.Offer, _ netip.Addr) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.expected = append(b.expected, o.Provider)
}

func (b *fakeBinder) Met(_ context.Context, peer *Peer) *framing.Join {
	b.met = peer
	return b.ask
}

func (b *fakeBinder) Joined(answer *framing.Join) error {
	b.answered = answer
	return b.unjoined
}

func (b *fakeBinder) Join(_ context.Context, _ *Peer, ask *framing.Join) (*framing.Join, error) {
	b.asked = ask
	return b.answer, b.unjoined
}

func (b *fakeBinder) Prepare(_ context.Context, o framing.Offer, peer *Peer, _ netip.Addr, page *Page) (Binding, error) {
	if err := b.prepare[o.Provider]; err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	fb := &fakeBinding{b: b, offer: o, peer: peer, page: page}
	b.bindings = append(b.bindings, fb)
	return fb, nil
}

func (f *fakeBinding) Local() framing.Attach {
	return framing.Attach{
		Provider: f.offer.Provider, Name: []byte("name of " + f.offer.Provider), Peer: 9,
		Token: [16]byte{8}, Slots: 64, Eager: framing.HeaderSize + 8192,
	}
}

func (f *fakeBinding) Refused(reasons []string) { f.refused = reasons }

func (f *fakeBinding) Connect(_ context.Context, remote framing.Attach) error {
	f.remote = remote
	if f.b.connecting != nil {
		f.b.connecting()
	}
	return f.b.connect[f.offer.Provider]
}

func (f *fakeBinding) Check(ctx context.Context) error {
	f.checked = true
	if f.b.checked != nil {
		f.b.checked()
	}
	if f.b.hang[f.offer.Provider] {
		<-ctx.Done()
		return fmt.Errorf("no answer over the fabric: %w", context.Cause(ctx)) // as engine.Peer.Check
	}
	return f.b.check[f.offer.Provider]
}

func (f *fakeBinding) Admit() error        { return f.b.unadmitted }
func (f *fakeBinding) Attached(s *Session) { f.session = s }
func (f *fakeBinding) Abort(err error) {
	f.b.mu.Lock()
	defer f.b.mu.Unlock()
	f.aborted, f.ended = err, time.Now()
}

// settled asserts that every binding except the one in use was undone exactly once.
func (b *fakeBinder) settled(t *testing.T, used Binding) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, f := range b.bindings {
		if Binding(f) == used {
			assert.NotNil(t, f.session, "%s attached", f.offer.Provider)
			assert.NoError(t, f.aborted)
		} else {
			assert.Nil(t, f.session, "%s not attached", f.offer.Provider)
			assert.Error(t, f.aborted, "%s aborted", f.offer.Provider)
		}
	}
}

type result struct {
	s   *Session
	b   *fakeBinding
	err error
}

type side func(context.Context, net.Conn, Config, Binder) (*Session, Binding, error)

func start(ctx context.Context, run side, nc net.Conn, cfg Config, b *fakeBinder) <-chan result {
	done := make(chan result, 1)
	go func() {
		s, binding, err := run(ctx, nc, cfg, b)
		r := result{s: s, err: err}
		if binding != nil {
			r.b = binding.(*fakeBinding)
		}
		done <- r
	}()
	return done
}

// meet runs the handshakes of both sides over the two ends of a connection, and checks that nothing
// is left behind. The sessions are closed at the end of the test.
func meet(t *testing.T, dnc, lnc net.Conn, dcfg, lcfg Config, d, l *fakeBinder) (dr, lr result) {
	t.Helper()
	dc, lc := start(t.Context(), Dial, dnc, dcfg, d), start(t.Context(), Accept, lnc, lcfg, l)
	dr, lr = <-dc, <-lc
	for _, x := range []struct {
		r result
		b *fakeBinder
	}{{dr, d}, {lr, l}} {
		if x.r.err != nil {
			assert.Nil(t, x.r.s)
			x.b.settled(t, nil)
			continue
		}
		assert.Same(t, x.r.s, x.r.b.session)
		x.b.settled(t, x.r.b)
		t.Cleanup(func() { assert.NoError(t, x.r.s.Close()) })
	}
	assert.Empty(t, pages(t), "the page's name is gone")
	return dr, lr
}

// pages lists the pages that still have a name. Tests that use pages do not run in
// parallel with each other.
func pages(t *testing.T) []string {
	t.Helper()
	names, err := filepath.Glob(pageDir + "*")
	require.NoError(t, err)
	return names
}

// loopback returns both ends of a TCP connection.
func loopback(t *testing.T) (client, server net.Conn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	client, err = net.Dial("tcp", ln.Addr().String())
	require.NoError(t, err)
	server, err = ln.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { client.Close(); server.Close() })
	return client, server
}

// recorder is a Handler that records its calls. It has sent as many messages as it was asked how many.
type recorder struct {
	asked atomic.Uint32
	beats atomic.Int32
	told  atomic.Uint32 // by the last heartbeat
	ended chan error
}

func newRecorder() *recorder {
	return &recorder{ended: make(chan error, 2)}
}

func (r *recorder) Sent() uint32 { return r.asked.Add(1) }

func (r *recorder) Heartbeat(sent uint32) {
	r.told.Store(sent)
	r.beats.Add(1)
}

func (r *recorder) Ended(err error, rest net.Conn) {
	closeRest(rest)
	r.ended <- err
}

// closeRest closes what is left of a session's connection.
func closeRest(rest net.Conn) {
	if rest != nil {
		rest.Close()
	}
}

func (r *recorder) wait(t *testing.T) error {
	t.Helper()
	select {
	case err := <-r.ended:
		return err
	case <-time.After(20 * time.Second):
		require.Fail(t, "the session does not end")
		return nil
	}
}

var errFake = errors.New("it is only a test")

func isTimeout(t *testing.T, err error) {
	t.Helper()
	assert.ErrorIs(t, err, os.ErrDeadlineExceeded)
	var ne net.Error
	if assert.ErrorAs(t, err, &ne) {
		assert.True(t, ne.Timeout())
	}
}
