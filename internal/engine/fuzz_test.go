package engine

import (
	"bytes"
	"cmp"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
)

// FuzzFrames plays a peer that holds a valid token, sends any frames in any order, and writes with any completion
// data. In between, local calls are made on the conns to it. Whatever it does, nothing panics, memory stays bounded,
// an honest peer on the same endpoint notices nothing, and all memory comes back. The seeds are in testdata/fuzz.
func FuzzFrames(f *testing.F) {
	open := []byte{0, 2, 0, 0, 0, 0, 0, 0} // of stream 1, like all that follow
	data := []byte{0, 6, 0, 0, 0, 0, 0, 0, 0x70}
	held := []byte{0, 6, 0, 0, 0, 0, 0, 218, 0x31}
	fin := []byte{0, 20, 0, 0, 0, 0, 0, 0}
	want := []byte{0, 15, 0, 0, 0, 0, 0}
	large := []byte{29, 0, 255, 255, 0, 0}
	accept := []byte{0, 4, 0, 0, 0, 0, 0}
	lease := []byte{0, 17, 0, 0, 0, 0, 0, 1, 0, 0, 0}
	revoke := []byte{0, 18, 0, 0, 0, 0, 0}
	reset := []byte{0, 22, 0, 0, 0, 0, 0, 1}
	dial, write, read := []byte{17}, []byte{18, 0, 0xff}, []byte{19, 0, 0xf0, 0}
	closes, borrow, release, stranger := []byte{20, 0, 2}, []byte{21, 0}, []byte{22, 0}, []byte{9, 0, 3}
	for i, steps := range [][][]byte{
		{open, data, read, held, data, fin, read, closes},
		{open, want, large, large, large},
		{open, want, large, borrow, read, large, release, fin, closes},
		{dial, accept, lease, write, write, write, revoke, write, closes},
		{dial, accept, lease, write, reset, data, closes},
		{open, stranger, open},
		{dial, closes, accept, open, want, large, stranger, {28, 63}, {11, 0}, open, data},
	} {
		for personality := range byte(6) {
			if i < 2 || personality == byte(i) {
				f.Add(append([]byte{personality, 1}, bytes.Join(steps, nil)...))
			}
		}
	}
	f.Fuzz(func(t *testing.T, script []byte) {
		// A script of 4 KiB takes a second. The fuzzer allows ten, however busy the machine is.
		runScript(t, script[:min(len(script), 1024)])
	})
}

func runScript(t *testing.T, script []byte) {
	r := &reader{script}
	sc := newScene(t, hostileSim(r))
	sc.deaf = r.byte()%8 == 0
	for len(r.b) > 0 {
		actions[int(r.byte())%len(actions)](sc, r)
		sc.check()
	}
	sc.finish()
}

// hostileSim picks one of a few fabrics on which many peers share an endpoint.
func hostileSim(r *reader) simfabric.Config {
	ps := []simfabric.Personality{
		simfabric.Net(), simfabric.RuleCQData(), simfabric.RuleSendAfterWrite(),
		simfabric.RuleDeliveryComplete(), simfabric.Verbs(), {},
	}
	b := r.byte()
	p := ps[int(b&7)%len(ps)]
	p.Provider, p.RxDepth, p.TxDepth = "sim", 5*16, 32 // quotas for one honest peer and four hostile ones
	if b&64 != 0 {
		p.SameHost, p.InjectSize = true, 4096
	}
	delay, again := 3*int(b>>4&1), 0.2*float64(b>>5&1)
	return simfabric.Config{Seed: 1, Personality: p, CompletionReorder: b&8 != 0, Delay: delay, AgainRate: again}
}

// frameTypes is what the types of frames are drawn from: most often data and large writes, seldom 0, which is none.
var frameTypes = []framing.Type{
	framing.TypeOpen, framing.TypeOpen, framing.TypeAccept, framing.TypeAccept,
	framing.TypeData, framing.TypeData, framing.TypeData, framing.TypeData, framing.TypeLarge, framing.TypeLarge,
	framing.TypeLarge, framing.TypeLarge, framing.TypeCredit, framing.TypeWant, framing.TypeWant, framing.TypeLease,
	framing.TypeRevoke, framing.TypeReturn, framing.TypeFin, framing.TypeFinAck, framing.TypeReset, 0,
}

// flagSets is what flags are drawn from; badSize stands for a payload that is too long for its type.
var flagSets = []framing.Flags{
	0, 0, 0, 0, 0, 0, framing.FlagLanded, framing.FlagLanded, framing.FlagClosed, framing.FlagClosed,
	framing.FlagWant, framing.FlagWant, 15, badSize,
}

const badSize framing.Flags = 128

// reader takes a script apart. At the end of the script it yields zeros.
type reader struct{ b []byte }

func (r *reader) byte() byte {
	if len(r.b) == 0 {
		return 0
	}
	x := r.b[0]
	r.b = r.b[1:]
	return x
}

// near returns base, a number close to it, or an extreme one.
func (r *reader) near(base uint64) uint64 {
	switch b := r.byte(); {
	case b < 192:
		return base
	case b < 224:
		return base + uint64(int64(b)-208)
	case b < 232:
		return base + uint64(r.byte())<<8
	case b < 240:
		return uint64(b - 232)
	case b < 248:
		return 1<<63 + base
	default:
		return ^uint64(b - 248)
	}
}

// stream returns the number of a stream, mostly one of a few.
func (r *reader) stream() uint32 {
	if b := r.byte(); b < 240 {
		return 1 + uint32(b%3)
	} else {
		return uint32(b-240) * 100
	}
}

// size returns the number of bytes that a call moves.
func (r *reader) size() int {
	b := r.byte()
	return int(b&15+1) << (b >> 4)
}

// actions are the steps of a script: the hostile peer's, then polls and the passing of time, then local calls.
var actions = []func(*scene, *reader){
	0: (*scene).frame, 1: (*scene).frame, 2: (*scene).frame, 3: (*scene).frame,
	4: (*scene).frame, 24: (*scene).frame, 25: (*scene).frame, 26: (*scene).frame, 27: (*scene).rightWrite,
	28: (*scene).flood, 29: (*scene).announcedWrite, 30: (*scene).announcedWrite,
	31: func(sc *scene, r *reader) { sc.call(r, (*scene).read) },
	5:  (*scene).rightWrite, 6: (*scene).anyWrite, 7: (*scene).anyImmediate, 8: (*scene).junk, 9: (*scene).stranger,
	10: func(sc *scene, r *reader) { sc.pollHostile(int(r.byte() & 31)) },
	11: (*scene).leaveOrMeet,
	12: func(sc *scene, _ *reader) { sc.net.Fail(sc.c.fab, fabric.Recv, simfabric.ErrInjected) }, // as when a message is cut short
	13: func(sc *scene, r *reader) { sc.poll(sc.c, 1+int(r.byte()&7)) },
	14: func(sc *scene, r *reader) { sc.poll(sc.c, 8) },
	15: func(sc *scene, r *reader) { sc.move(1 << (r.byte() & 15)); sc.pollAll() },
	16: (*scene).passTime,
	17: (*scene).openTowards,
	18: func(sc *scene, r *reader) { sc.call(r, (*scene).write) },
	19: func(sc *scene, r *reader) { sc.call(r, (*scene).read) },
	20: func(sc *scene, r *reader) { sc.call(r, (*scene).end) },
	21: func(sc *scene, r *reader) { sc.call(r, (*scene).borrow) },
	22: (*scene).giveBack,
	23: func(sc *scene, r *reader) { sc.call(r, (*scene).sendBuffer) },
}

// frame sends a frame with a valid proof: any type, flags and stream, and numbers that are right, nearly right, or absurd.
func (sc *scene) frame(r *reader) {
	t, flags, id := frameTypes[int(r.byte())%len(frameTypes)], flagSets[int(r.byte())%len(flagSets)], r.stream()
	if !sc.deaf {
		sc.pollHostile(16)
	}
	s := sc.bad.streams[id]
	if s == nil {
		s = &stream{p: sc.bad}
	}
	h := framing.Header{
		Type: t, Flags: flags, Stream: id,
		Slots:  uint32(r.near(uint64(sc.bad.used) + 16)),
		Window: r.near(s.smallOut + 4096), Ring: r.near(s.largeOut),
	}
	var payload []byte
	switch t {
	case framing.TypeOpen:
		payload = encode(framing.OpenSize, &framing.Open{Listener: uint32(r.near(hostileListener))})
	case framing.TypeData:
		h.Pos = r.near(s.rcvNxt)
		payload = make([]byte, min(r.size(), EagerPayload+8))
	case framing.TypeLarge:
		h.Pos = r.near(s.rcvNxt)
		l := s.lease()
		payload = encode(framing.LargeSize, &framing.Large{
			Lease: uint16(r.near(uint64(l.Index))), Seq: uint16(r.near(uint64(l.seq))),
			Length: uint32(r.near(uint64(r.size()))), Ring: r.near(s.largeIn),
		})
	case framing.TypeCredit:
		for range r.byte() % 4 {
			e := framing.Credit{Stream: r.stream()}
			e.Window, e.Ring = r.near(s.smallOut+8192), r.near(s.largeOut)
			payload = append(payload, encode(framing.CreditSize, &e)...)
		}
	case framing.TypeLease:
		l := framing.Lease{
			Index: uint16(r.byte()), Chunk: uint32(r.near(64 << 10)), Size: r.near(128 << 10), Remote: framing.Remote{Addr: r.near(0), Key: 1},
		}
		if sc.maps {
			l.FD, l.Key = uint32(r.near(uint64(sc.badRing.Shared.FD))), r.near(sc.badRing.Shared.Inode)
		}
		payload = encode(framing.LeaseSize, &l)
	case framing.TypeWant:
		if r.byte() < 128 {
			h.Pos = 1 + r.near(uint64(s.lease().Index))
		}
	case framing.TypeReturn:
		h.Pos = r.near(s.largeIn)
	case framing.TypeFin, framing.TypeFinAck:
		h.Pos = r.near(s.rcvNxt)
	case framing.TypeAccept:
		payload = encode(framing.AcceptSize, &framing.Accept{Port: uint16(r.near(anyPort))})
	case framing.TypeReset:
		payload = encode(framing.ResetSize, framing.ResetCode(r.byte()))
	}
	if flags == badSize {
		h.Flags = 0
		payload = append(payload, make([]byte, 1+r.byte()%24)...)
	}
	sc.say(h, payload)
	sc.poll(sc.c, 8)
}

// lease returns the lease that the stream has granted, or an empty one that can be looked at.
func (s *stream) lease() *inLease { return cmp.Or(s.inLease, &inLease{}) }

// rightWrite writes to the ring that was granted for a stream, with completion data that is right or nearly right.
func (sc *scene) rightWrite(r *reader) {
	s := sc.bad.streams[r.stream()]
	if s == nil || s.inLease == nil {
		return
	}
	l := s.inLease
	at := framing.RingOffset(s.largeIn-l.base, uint64(len(l.Ring.Bytes)))
	addr, imm := l.Ring.Addr+r.near(at), framing.MakeImmediate(l.Index, uint16(r.near(uint64(l.seq))), r.byte() > 200)
	sc.writeRing(min(r.size(), 32<<10), addr, l.Ring.Key, imm)
	sc.poll(sc.c, 8)
}

// announcedWrite writes to a stream's ring, as it should, and announces that, with a wrong number now and then.
func (sc *scene) announcedWrite(r *reader) {
	s := sc.bad.streams[r.stream()]
	if s == nil || s.inLease == nil {
		return
	}
	l := s.inLease
	size := uint64(len(l.Ring.Bytes))
	at := framing.RingOffset(s.largeIn-l.base, size)
	n := uint64(32 << 10)
	if r.byte() < 128 {
		n = uint64(r.size())
	}
	n = min(framing.RingSpan(at, size, n), uint64(l.chunk), 32<<10)
	claimed := n
	if r.byte() < 32 {
		claimed = uint64(r.size())
	}
	h := framing.Header{Type: framing.TypeLarge, Stream: s.id, Slots: sc.bad.used + 16, Pos: s.rcvNxt}
	imm := framing.MakeImmediate(l.Index, l.seq, false)
	if sc.c.attr.CQDataSize < 4 {
		h.Flags = framing.FlagLanded
	}
	sc.writeRing(int(n), l.Ring.Addr+at, l.Ring.Key, imm)
	large := framing.Large{Lease: l.Index, Seq: uint16(r.near(uint64(l.seq))), Length: uint32(claimed), Ring: r.near(s.largeIn)}
	sc.say(h, encode(framing.LargeSize, &large))
	sc.poll(sc.c, 8)
}

// flood sends as many frames as it likes without waiting for credit.
func (sc *scene) flood(r *reader) {
	if sc.floods++; sc.floods > 16 { // each time takes as long as hundreds of other actions
		return
	}
	for range r.byte() % 64 {
		sc.say(framing.Header{Type: framing.TypeCredit}, nil)
	}
	sc.poll(sc.c, 8)
}

// anyWrite writes anywhere.
func (sc *scene) anyWrite(r *reader) {
	addr, key, imm := r.near(0), r.near(uint64(r.byte())<<32), sc.immediate(r)
	sc.writeRing(min(r.size(), 32<<10), addr, key, imm)
	sc.poll(sc.c, 8)
}

// writeRing writes n bytes, with completion data where the fabric carries it.
func (sc *scene) writeRing(n int, remote, key uint64, imm framing.Immediate) {
	op := fabric.Op{Kind: fabric.Write, Buf: sc.badMem.Bytes()[64<<10:][:n], Desc: 1, Remote: remote, Key: key}
	if sc.c.attr.CQDataSize >= 4 {
		op.Kind, op.Data = fabric.WriteData, imm.Proven(sc.bad.proofIn)
	}
	sc.post(op)
}

// immediate returns any completion data, except that it names no lease of an honest peer which
// announces its own writes by such data: it carries no proof (SPEC.md section 10).
func (sc *scene) immediate(r *reader) framing.Immediate {
	lease := uint16(r.byte()) | uint16(r.byte())<<8&0x7f00
	if sc.c.rule == byBareData && sc.c.leases.named(lease).peer == sc.toHonest.id {
		lease = 0x7fff
	}
	return framing.MakeImmediate(lease, uint16(r.near(0)), r.byte()%2 == 0)
}

func (sc *scene) anyImmediate(r *reader) {
	sc.c.dispatch([]fabric.Completion{{Kind: fabric.RemoteWrite, Data: sc.immediate(r).Proven(sc.bad.proofIn)}})
}

// junk sends bytes that may not be a frame, or may be too many for one.
func (sc *scene) junk(r *reader) {
	frame := make([]byte, min(r.size(), 32<<10))
	h := framing.Header{Type: framing.Type(r.byte()), Flags: framing.Flags(r.byte()), Length: uint16(r.byte()), Peer: sc.bad.id, Proof: sc.bad.proofIn}
	copy(frame, encoded(h, nil))
	sc.sendHostile(frame)
	sc.poll(sc.c, 8)
}

// stranger sends frames that would do something if only their proof were right. They change nothing.
func (sc *scene) stranger(r *reader) {
	for i, before := 0, ""; ; i++ { // first, what is under way must end: it changes something
		for range 8 {
			sc.poll(sc.c, 8)
		}
		now := fmt.Sprint(snapshot(sc.c), sc.c.stats.FramesDropped, sc.net.Stats().InFlight)
		if now == before && len(sc.c.recvs) == 0 {
			break
		}
		if before = now; i == 32 {
			return
		}
	}
	before, dropped := snapshot(sc.c), sc.c.stats.FramesDropped
	victim := sc.bad
	if r.byte()%2 == 0 {
		victim = sc.toHonest
	}
	bit := r.byte() % 64
	for t := framing.TypeOpen; t <= framing.TypeReset; t++ {
		h := framing.Header{Type: t, Peer: victim.id, Proof: victim.proofIn ^ 1<<bit, Stream: r.stream(), Window: 1 << 40, Slots: 1 << 20}
		sc.sendHostile(encoded(h, nil))
		for range 4 {
			sc.poll(sc.c, 8)
		}
	}
	if !sc.dead && sc.c.stats.FramesDropped == dropped && sc.net.Stats().Refused == 0 {
		require.Fail(sc.t, "no frame was dropped")
	}
	if after := snapshot(sc.c); after != before {
		was, is := strings.Split(before, "\n"), strings.Split(after, "\n")
		for i := range min(len(was), len(is)) {
			require.Equal(sc.t, was[i], is[i], "changed by a frame without the right proof")
		}
	}
}

// leaveOrMeet ends the hostile peer's process, or lets the next one come.
func (sc *scene) leaveOrMeet(r *reader) {
	switch {
	case sc.dead || sc.bad.err != nil:
		if sc.meetings < 4 {
			sc.die()
			sc.bad.doom(ErrEndpointClosed)
			sc.c.flush()
			sc.meetHostile()
		}
	case r.byte()%8 == 0:
		sc.die()
	}
}

func (sc *scene) passTime(r *reader) {
	sc.tick(time.Duration(r.byte()) * 20 * time.Millisecond)
	for _, c := range []*core{sc.c, sc.honest} {
		c.chores()
		c.flush()
	}
}

// TestHostileScripts: what FuzzFrames checks holds for random scripts, which get further in a short time than fuzzing does.
func TestHostileScripts(t *testing.T) {
	for seed := uint64(1); seed <= uint64(*seedsFlag)/4; seed++ {
		rng := rand.New(rand.NewPCG(seed, 11))
		script := make([]byte, 200+rng.IntN(1000))
		for i := range script {
			script[i] = byte(rng.Uint32())
		}
		if !t.Run(fmt.Sprint(seed), func(t *testing.T) { runScript(t, script) }) {
			return
		}
	}
}

// TestOversizedFramesEndNobody: frames that are too long for a receive slot do not make the
// endpoint give up, even if more of them come in a row than there are slots.
func TestOversizedFramesEndNobody(t *testing.T) {
	sc := newScene(t, simfabric.Config{Seed: 1, Personality: simfabric.Personality{Provider: "sim", RxDepth: 5 * 16, TxDepth: 32}})
	for range 4 * sc.c.rx.Len() {
		sc.sendHostile(make([]byte, eagerFrame+1))
		sc.poll(sc.c, 8)
		sc.check()
	}
	require.EqualValues(t, 4*sc.c.rx.Len(), sc.c.stats.FramesDropped)
	sc.finish()
}
