//go:build linux && cgo

package systemtest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/bootstrap"
	"github.com/seed202c38ff/fabricnet/internal/engine"
	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/internal/fabric/ofifabric"
	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/seed202c38ff/fabricnet/pool"
)

const (
	hostileEager = framing.HeaderSize + 8<<10
	hostileRecvs = 256
	// hostileOut is where in a hostile peer's memory its outgoing frames and writes
	// lie, after the receives.
	hostileOut  = hostileRecvs * hostileEager
	hostileSize = hostileOut + 1<<20
)

// hostile is a peer that has been through the handshake like any other, and has an
// endpoint of its own on which it posts whatever it likes. It belongs to one goroutine.
type hostile struct {
	provider string
	claims   []byte // the name that it claims for its endpoint; nil: the true one
	infos    []fabric.ProviderInfo

	fab     fabric.Endpoint
	mem     *pool.Slab
	landing *pool.Slab  // what the listener writes to for the path check
	shared  *pool.Arena // the same, if it is mapped
	desc    uintptr
	local   framing.Attach
	remote  framing.Attach
	addr    fabric.Addr
	proof   uint64
	number  uint32 // of the listener
	tcp     net.Conn
	session *bootstrap.Session
	page    *bootstrap.Page // nil unless both sides are on one host
	ended   chan error

	sends    int // in flight
	got      []frame
	received uint32
	used     uint32 // of the listener's receive slots
	credit   uint32
	slots    uint32        // granted at first
	greedy   bool          // sends without credit
	claim    atomic.Uint32 // how many messages its heartbeats say that it has sent
	mute     bool          // grants no more slots
}

// frame is a frame that has arrived, or that is to be sent.
type frame struct {
	framing.Header
	payload []byte
}

var errCutOff = errors.New("cut off")

// intrude goes through the handshake with the listener at addr.
func intrude(provider, addr string, slots uint32, claims []byte) (*hostile, error) {
	infos, err := ofifabric.New().Providers(netip.MustParseAddr(testenv.Host()))
	if err != nil {
		return nil, err
	}
	h := &hostile{provider: provider, claims: claims, slots: slots, ended: make(chan error, 1)}
	if slots == 0 {
		h.slots = hostileRecvs
	}
	h.infos = slices.DeleteFunc(infos, func(i fabric.ProviderInfo) bool { return i.Name != provider })
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	h.tcp = nc
	ctx, cancel := context.WithTimeout(context.Background(), rdmatest.Patience)
	defer cancel()
	s, _, err := bootstrap.Dial(ctx, nc, bootstrap.Config{}, h)
	if err != nil {
		return nil, err
	}
	h.number = s.Remote().Listener
	s.Start(h)
	return h, nil
}

// Hello and the methods that follow, up to Ended, are what package bootstrap calls
// during the handshake and the session.
func (h *hostile) Hello() framing.Hello {
	host, _ := bootstrap.HostID()
	hello := framing.Hello{Host: host, UID: uint32(os.Geteuid())}
	rand.Read(hello.Process[:])
	return hello
}

func (h *hostile) Offer(_ context.Context, _ netip.Addr, hello *framing.Hello) error {
	for _, p := range h.infos {
		hello.Offers = append(hello.Offers, bootstrap.OfferOf(&p))
	}
	return nil
}

func (h *hostile) Authorize(context.Context, *bootstrap.Peer) error { return nil }

func (h *hostile) Met(context.Context, *bootstrap.Peer) *framing.Join { return nil }

func (h *hostile) Joined(*framing.Join) error { return nil }

func (h *hostile) Join(context.Context, *bootstrap.Peer, *framing.Join) (*framing.Join, error) {
	return nil, nil
}

func (h *hostile) Expect(framing.Offer, netip.Addr) {}

func (h *hostile) Prepare(_ context.Context, _ framing.Offer, _ *bootstrap.Peer, local netip.Addr, page *bootstrap.Page) (bootstrap.Binding, error) {
	h.page = page
	fab, err := ofifabric.New().Open(h.provider, local)
	if err != nil {
		return nil, err
	}
	h.fab = fab
	if h.mem, err = pool.NewSlab(pool.NewBudget(0), fab, hostileSize, pool.AccessLocal); err != nil {
		return nil, err
	}
	h.desc = h.mem.Region().Desc()
	if h.landing, err = pool.NewSlab(pool.NewBudget(0), fab, hostileRing, pool.AccessRemoteWrite); err != nil {
		return nil, err
	}
	for i := range hostileRecvs {
		if err := h.receive(uint32(i)); err != nil {
			return nil, err
		}
	}
	h.local = framing.Attach{Provider: h.provider, Name: fab.Name(), Peer: 77, Slots: h.slots, Eager: hostileEager, Rule: uint32(engine.ChooseRule(fab.Attr()))}
	if h.claims != nil {
		h.local.Name = h.claims
	}
	rand.Read(h.local.Token[:])
	return h, nil
}

func (h *hostile) Refused([]string) {}

func (h *hostile) Local() framing.Attach { return h.local }

func (h *hostile) Connect(_ context.Context, remote framing.Attach) (err error) {
	h.remote, h.proof, h.credit = remote, framing.Proof(remote.Token), remote.Slots
	h.addr, err = h.fab.Insert(remote.Name)
	return err
}

func (h *hostile) Check(context.Context) error {
	if h.claims != nil {
		return nil // the answers go to the good client
	}
	return h.check()
}

func (h *hostile) Admit() error { return nil }

func (h *hostile) Attached(s *bootstrap.Session) {
	h.session = s
	if u, ok := h.fab.(interface{ Unlink() error }); ok {
		_ = u.Unlink()
	}
}

func (h *hostile) Abort(error) {}

func (h *hostile) Sent() uint32     { return h.claim.Load() }
func (h *hostile) Heartbeat(uint32) {}
func (h *hostile) Ended(err error, rest net.Conn) {
	if rest != nil {
		rest.Close()
	}
	h.ended <- err
}

// leave ends the peer. To the listener it looks as if the peer's process had ended.
func (h *hostile) leave() {
	_ = h.session.Close()
	h.free()
}

// free gives up the endpoint and all memory.
func (h *hostile) free() {
	_ = h.fab.Shutdown()
	_ = h.mem.Close()
	_ = h.landing.Close()
	if h.shared != nil {
		_ = h.shared.Close()
	}
	_ = h.fab.Close()
}

func (h *hostile) receive(slot uint32) error {
	buf := h.mem.Bytes()[slot*hostileEager:][:hostileEager]
	return h.post(fabric.Op{Kind: fabric.Recv, Tag: slot, Buf: buf, Desc: h.desc})
}

// post posts one operation. It fails with errCutOff if the listener has cut this peer
// off, or takes nothing more.
func (h *hostile) post(op fabric.Op) error {
	op.To = h.addr
	for begin := time.Now(); time.Since(begin) < rdmatest.Patience/4; {
		posted, _, err := h.fab.Exchange([]fabric.Op{op}, nil)
		if err != nil {
			return fmt.Errorf("%w: %w", errCutOff, err)
		}
		if posted == 1 {
			if op.Kind != fabric.Recv {
				h.sends++
				h.ring()
			}
			return nil
		}
		h.poll()
	}
	return fmt.Errorf("%w: the fabric takes nothing more", errCutOff)
}

// ring wakes the listener if the provider cannot.
func (h *hostile) ring() {
	if h.session == nil {
		return // during the path check the listener polls by itself
	}
	if h.page == nil {
		return
	}
	if d := h.page.Doorbell(); d.Peer.Swap(0) != 0 {
		d.Ring(true) // one of the two is the wrong bell
		d.Ring(false)
	}
}

// poll takes in what has arrived, and what has been sent.
func (h *hostile) poll() {
	var done [32]fabric.Completion
	_, n, _ := h.fab.Exchange(nil, done[:])
	for _, d := range done[:n] {
		switch {
		case d.Kind == fabric.Recv && d.Err == nil:
			var f frame
			payload, err := f.Decode(h.mem.Bytes()[d.Tag*hostileEager:][:d.Len])
			if err == nil {
				f.payload = slices.Clone(payload)
				h.got = append(h.got, f)
				h.credit = max(h.credit, f.Slots)
			}
			h.received++
			_ = h.receive(d.Tag)
		case d.Kind == fabric.Send, d.Kind == fabric.Write, d.Kind == fabric.WriteData:
			h.sends--
		}
	}
}

// settle polls until everything that was sent has left. It fails if the listener does
// not take it.
func (h *hostile) settle() error {
	for begin := time.Now(); h.sends > 0; h.poll() {
		if h.cutOff(0) || time.Since(begin) > rdmatest.Patience/4 {
			return errCutOff
		}
	}
	return nil
}

// header fills in the fields that all of this peer's frames need.
func (h *hostile) header(f frame) framing.Header {
	f.Length, f.Peer, f.Proof = uint16(len(f.payload)), h.remote.Peer, h.proof
	if f.Slots = h.slots; !h.mute {
		f.Slots += h.received
	}
	return f.Header
}

func encode(h framing.Header, payload []byte) []byte {
	b := append(make([]byte, framing.HeaderSize), payload...)
	h.Encode(b)
	return b
}

// send sends a frame that is valid but for what the caller has made wrong.
func (h *hostile) send(f frame) error { return h.raw(encode(h.header(f), f.payload)) }

// raw sends any bytes. It waits for credit, unless the peer is greedy.
func (h *hostile) raw(b []byte) error {
	if err := h.awaitCredit(); err != nil {
		return err
	}
	h.used++
	if err := h.settle(); err != nil { // since the memory is reused
		return err
	}
	buf := h.mem.Bytes()[hostileOut:][:len(b)]
	copy(buf, b)
	return h.post(fabric.Op{Kind: fabric.Send, Buf: buf, Desc: h.desc})
}

// awaitCredit waits for a receive slot of the listener's, unless the peer is greedy.
func (h *hostile) awaitCredit() error {
	for begin := time.Now(); !h.greedy && h.credit-h.used <= 1; {
		h.poll()
		if h.cutOff(0) || time.Since(begin) > rdmatest.Patience/4 {
			return errCutOff
		}
	}
	return nil
}

// await waits for a frame of type t. It takes that frame, and drops those that came before it.
func (h *hostile) await(t framing.Type) (frame, error) {
	for begin := time.Now(); time.Since(begin) < rdmatest.Patience/2; h.poll() {
		if i := slices.IndexFunc(h.got, func(f frame) bool { return f.Type == t }); i >= 0 {
			f := h.got[i]
			h.got = slices.Delete(h.got, 0, i+1)
			return f, nil
		}
	}
	return frame{}, fmt.Errorf("no %v from the listener", t)
}

// ping has the listener answer something.
func (h *hostile) ping() error {
	if err := h.send(h.opening(1<<30, ^uint32(0))); err != nil { // of which there is none
		return err
	}
	_, err := h.await(framing.TypeReset)
	return err
}

// open opens a stream.
func (h *hostile) open(stream uint32) error {
	if err := h.send(h.opening(stream, h.number)); err != nil {
		return err
	}
	_, err := h.await(framing.TypeAccept)
	return err
}

func (h *hostile) opening(stream, listener uint32) frame {
	f := frame{framing.Header{Type: framing.TypeOpen, Stream: stream, Window: 64 << 10}, make([]byte, framing.OpenSize)}
	(&framing.Open{Listener: listener}).Encode(f.payload)
	return f
}

// data returns a frame with small data.
func (h *hostile) data(stream uint32, pos uint64, b []byte) frame {
	return frame{framing.Header{Type: framing.TypeData, Stream: stream, Pos: pos, Window: 64 << 10}, b}
}

// lease asks for a landing ring.
func (h *hostile) lease(stream uint32) (l framing.Lease, err error) {
	if err = h.send(frame{Header: framing.Header{Type: framing.TypeWant, Stream: stream}}); err != nil {
		return l, err
	}
	return h.awaitLease()
}

// awaitLease waits for a landing ring.
func (h *hostile) awaitLease() (l framing.Lease, err error) {
	f, err := h.await(framing.TypeLease)
	if err == nil {
		err = l.Decode(f.payload)
	}
	return l, err
}

// write makes an RDMA write with completion data.
func (h *hostile) write(remote, key uint64, n int, imm framing.Immediate) error {
	if err := h.settle(); err != nil {
		return err
	}
	return h.post(fabric.Op{
		Kind: fabric.WriteData, Buf: h.mem.Bytes()[hostileOut:][:n], Desc: h.desc, Remote: remote, Key: key, Data: imm.Proven(h.proof),
	})
}

// cutOff reports whether the listener has ended the session, and waits at most that
// long for it.
func (h *hostile) cutOff(wait time.Duration) bool {
	for begin := time.Now(); ; time.Sleep(time.Millisecond) {
		h.poll()
		select {
		case err := <-h.ended:
			h.ended <- err
			return true
		default:
		}
		if time.Since(begin) >= wait {
			return false
		}
	}
}
