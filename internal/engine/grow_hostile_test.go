package engine

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/framing"
)

// TestHostileGrowth: a peer that has rings grow, and says all that concerns rings in any order, does no harm.
// Scripts drawn at random hardly ever come to a second ring: these are made of what leads there.
func TestHostileGrowth(t *testing.T) {
	frame := func(kind framing.Type, flags, stream byte, rest ...byte) []byte {
		return append([]byte{0, byte(slices.Index(frameTypes, kind)), flags, stream, 0, 0, 0}, rest...)
	}
	const passTime, write, read, borrow, giveBack, announcedWrite = 16, 18, 19, 21, 22, 29 // indices of actions
	want := byte(slices.Index(flagSets, framing.FlagWant))
	second, old := 0, 0
	for seed := range uint64(200) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 12))
			sc := newScene(t, hostileSim(&reader{[]byte{byte(rng.IntN(128))}}))
			do := func(script []byte) {
				for i := range script {
					if i > 0 && rng.IntN(300) == 0 {
						script[i] = byte(rng.Uint32())
					}
				}
				actions[int(script[0])%len(actions)](sc, &reader{script[1:]})
				sc.check()
				for _, s := range sc.bad.streams {
					if s.nextLease != nil {
						second++
					}
					if s.oldLease != nil {
						old++
					}
				}
			}
			do(frame(framing.TypeOpen, 0, 0, 0))
			do([]byte{17})
			do(frame(framing.TypeAccept, 0, 1, 0))
			for range 20 + rng.IntN(120) {
				stream, lease := byte(rng.IntN(2)), byte(rng.IntN(4))
				scripts := [][]byte{
					frame(framing.TypeWant, 0, stream, 200), frame(framing.TypeWant, 0, stream, 0, 0), frame(framing.TypeWant, 0, stream, 0, 0),
					{announcedWrite, stream, 150, 150, 150, 150}, {announcedWrite, stream, 50, 150, 150, 150},
					frame(framing.TypeReturn, 0, stream, 0), frame(framing.TypeReturn, want, stream, 0),
					frame(framing.TypeLease, 0, stream, lease, 0, 0, 0, 0, 0), frame(framing.TypeLease, 0, stream, lease, 0, 0, 0, 0, 0),
					frame(framing.TypeRevoke, 0, stream), frame(framing.TypeData, 0, stream, 0, 0x70),
					{write, stream, 0xff}, {read, stream, 200, 0}, {borrow, stream}, {giveBack, stream}, {passTime, 40},
				}
				if rng.IntN(80) == 0 {
					scripts = [][]byte{frame(framing.TypeFin, 0, stream, 0), frame(framing.TypeReset, 0, stream, 1)}
				}
				do(scripts[rng.IntN(len(scripts))])
			}
			sc.finish()
		})
	}
	require.Positive(t, second)
	require.Positive(t, old)
	t.Logf("%d steps with a second ring, %d with an old one", second, old)
}

// TestWantBeforeReturn: the peer may find its second ring too small before this side has the Return of the
// first, and says so only once.
func TestWantBeforeReturn(t *testing.T) {
	for name, overtakes := range map[string]bool{"in order": false, "overtakes": true} {
		t.Run(name, func(t *testing.T) {
			sc := newScene(t, hostileSim(&reader{[]byte{1}}))
			send := func(kind framing.Type, pos uint64, payload []byte) {
				h := framing.Header{
					Type: kind, Peer: sc.bad.id, Proof: sc.bad.proofIn, Stream: 1, Slots: sc.bad.used + 16, Window: 1 << 20,
					Pos: pos, Length: uint16(len(payload)),
				}
				frame := append(make([]byte, framing.HeaderSize), payload...)
				h.Encode(frame)
				sc.pollHostile(16)
				sc.sendHostile(frame)
				for range 20 {
					sc.poll(sc.c, 8)
				}
				require.NoError(t, sc.bad.err)
			}
			open := make([]byte, framing.OpenSize)
			(&framing.Open{Listener: hostileListener}).Encode(open)
			send(framing.TypeOpen, 0, open)
			send(framing.TypeWant, 0, nil)
			s := sc.bad.streams[1]
			require.Len(t, s.inLease.Ring.Bytes, 16<<10)
			sc.c.rings.most = 32 << 10 // memory is rather short
			send(framing.TypeWant, 1+uint64(s.inLease.Index), nil)
			require.Len(t, s.nextLease.Ring.Bytes, 32<<10)
			sc.c.rings.most = 64 << 10
			want := 1 + uint64(s.nextLease.Index)
			if overtakes {
				send(framing.TypeWant, want, nil)
			}
			send(framing.TypeReturn, 0, nil)
			if !overtakes {
				send(framing.TypeWant, want, nil)
			}
			require.Len(t, s.inLease.Ring.Bytes, 32<<10)
			require.Len(t, s.nextLease.Ring.Bytes, 64<<10)
			sc.finish()
		})
	}
}
