//go:build linux && cgo

package systemtest

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// attack is something that a hostile peer does after it has been let in like any other peer.
type attack struct {
	run func(h *hostile) error
	// cut: the listener ends the peer. Otherwise it goes on answering it.
	cut bool
	// either: both outcomes are fine.
	either bool
	// counted returns the counter that the attack raises. It is nil if there is none.
	counted func(s rdmanet.ProviderStats) uint64
	// trust: the attack is not tried over shared memory. The peers there run as the
	// same user, so the system lets them write to each other's memory.
	trust bool
	// mapped: the attack needs rings that both sides map, which only shm has.
	mapped bool
	// slots is how many receive slots the peer grants. 0 means plenty.
	slots uint32
	// claims: the peer says that its endpoint is the good client's.
	claims bool
}

func dropped(s rdmanet.ProviderStats) uint64 { return s.FramesDropped }

// tooLong counts messages that were longer than the receive. After some of them, a call
// into libfabric 1.17's shm provider does not return, and the endpoint is abandoned.
func tooLong(s rdmanet.ProviderStats) uint64 { return s.FramesDropped + s.Abandoned }

func stray(s rdmanet.ProviderStats) uint64      { return s.FramesStray }
func violations(s rdmanet.ProviderStats) uint64 { return s.Violations }
func ignored(s rdmanet.ProviderStats) uint64 {
	return s.FramesDropped + s.FramesStray + s.WritesStray + s.Violations
}

var attacks = map[string]attack{
	"wrong proofs":          {run: wrongProofs, counted: dropped},
	"other peers' frames":   {run: otherPeers, counted: dropped},
	"other streams' frames": {run: otherStreams, counted: stray},
	"mutated frames":        {run: mutatedFrames, counted: ignored, either: true},
	"replayed data":         {run: replayedData, counted: violations, cut: true},
	"oversized frames":      {run: oversizedFrames, counted: tooLong, either: true},
	"more than granted":     {run: floodOfFrames, counted: violations, cut: true, slots: framing.MinSlots},
	"more than the window":  {run: beyondWindow, counted: violations, cut: true, slots: framing.MinSlots},
	"no ring":               {run: ringOfOthers, counted: stray},
	"beyond the ring":       {run: beyondRing, counted: violations, cut: true},
	"twice the same write":  {run: sameWriteTwice, counted: violations, cut: true},
	"others' leases":        {run: othersLeases, trust: true, counted: ignored, either: true},
	"bad keys":              {run: badKeys, trust: true, either: true},
	"two ends":              {run: twoEnds, counted: violations, cut: true},
	"foreign signals":       {run: foreignSignals, cut: true},
	"flood of heartbeats":   {run: floodOfHeartbeats, cut: true},
	"phantom messages":      {run: phantomMessages, cut: true},
	"another's name":        {run: anothersName, trust: true, claims: true, either: true},
}

func everyType(send func(framing.Type) error) error {
	for t := framing.TypeOpen; t <= framing.TypeReset; t++ {
		if err := send(t); err != nil {
			return err
		}
	}
	return nil
}

// wrongProofs sends frames of every type with a proof that is off by one bit. They
// use up no credit.
func wrongProofs(h *hostile) error {
	if err := h.open(1); err != nil {
		return err
	}
	return everyType(func(t framing.Type) error {
		hd := h.header(frame{Header: framing.Header{Type: t, Stream: 1, Window: 1 << 40}})
		hd.Proof ^= 1 << rand.IntN(64)
		h.used--
		return h.raw(encode(hd, nil))
	})
}

// otherPeers sends frames that claim to come from the listener's other peers.
func otherPeers(h *hostile) error {
	return everyType(func(t framing.Type) error {
		for peer := range uint32(8) {
			if peer == h.remote.Peer {
				continue
			}
			hd := h.header(frame{Header: framing.Header{Type: t, Stream: 1}})
			hd.Peer = peer
			h.used--
			if err := h.raw(encode(hd, nil)); err != nil {
				return err
			}
		}
		return nil
	})
}

// otherStreams sends frames for streams that belong to others, or to nobody.
func otherStreams(h *hostile) error {
	return everyType(func(t framing.Type) error {
		if t == framing.TypeOpen || t == framing.TypeCredit {
			return nil
		}
		for stream := range uint32(4) {
			if err := h.send(frame{framing.Header{Type: t, Stream: stream + 1, Pos: 5}, make([]byte, 4)}); err != nil {
				return err
			}
		}
		return nil
	})
}

// mutatedFrames flips bits of frames that would otherwise be valid.
func mutatedFrames(h *hostile) error {
	if err := h.open(1); err != nil {
		return err
	}
	pos := uint64(0)
	for i := range 200 {
		var b []byte
		switch i % 4 {
		case 0:
			f := h.opening(uint32(i), h.number)
			b = encode(h.header(f), f.payload)
		case 1, 2:
			f := h.data(1, pos, make([]byte, 100))
			b = encode(h.header(f), f.payload)
		case 3:
			b = encode(h.header(frame{Header: framing.Header{Type: framing.TypeWant, Stream: 1}}), nil)
		}
		for range 1 + rand.IntN(4) {
			b[rand.IntN(len(b))] ^= 1 << rand.IntN(8)
		}
		if err := h.raw(b); err != nil {
			return ended(err)
		}
	}
	return nil
}

// ended returns nil instead of err if err says that the listener has cut this peer off.
func ended(err error) error {
	if errors.Is(err, errCutOff) {
		return nil
	}
	return err
}

// replayedData sends frames again. Repeated data is ignored, as the echo shows. Opening
// a stream a second time is not allowed.
func replayedData(h *hostile) error {
	if err := h.open(1); err != nil {
		return err
	}
	text := []byte("echo once")
	for range 5 {
		if err := h.send(h.data(1, 0, text)); err != nil {
			return err
		}
	}
	f, err := h.await(framing.TypeData)
	if err != nil {
		return err
	}
	if !bytes.Equal(f.payload, text) {
		return fmt.Errorf("the echo is %q", f.payload)
	}
	if err := h.ping(); err != nil {
		return err
	}
	return ended(h.send(h.opening(1, h.number)))
}

// oversizedFrames sends frames that are longer than a receive slot. It sends more of them
// than there are slots, so that the listener hears nothing else in between.
func oversizedFrames(h *hostile) error {
	h.greedy = true
	for range 600 {
		f := h.data(1, 0, make([]byte, hostileEager+8000))
		if err := h.raw(encode(h.header(f), f.payload)); err != nil {
			return ended(err)
		}
	}
	return nil
}

// floodOfFrames sends far more frames than it has been granted slots for. It grants so
// few slots itself that the listener cannot return those that have been used.
func floodOfFrames(h *hostile) error {
	f := h.data(1, 0, make([]byte, 1000))
	buf := h.mem.Bytes()[hostileOut:][:framing.HeaderSize+len(f.payload)]
	copy(buf, encode(h.header(f), f.payload))
	for range 2000 { // the same buffer each time, so that there is nothing to wait for
		if err := h.post(fabric.Op{Kind: fabric.Send, Buf: buf, Desc: h.desc}); err != nil {
			return ended(err)
		}
	}
	return nil
}

// beyondWindow sends more than a conn has memory for. The echo cannot leave the listener,
// so the listener reads nothing more.
func beyondWindow(h *hostile) error {
	if err := h.open(1); err != nil {
		return err
	}
	h.greedy, h.mute = true, true
	const size = 4000 // which every provider's frames have room for
	for pos := uint64(0); pos < 1<<20; pos += size {
		if err := h.send(h.data(1, pos, make([]byte, size))); err != nil {
			return ended(err)
		}
	}
	return nil
}

func announce(stream uint32, pos uint64, l framing.Large) frame {
	f := frame{framing.Header{Type: framing.TypeLarge, Flags: framing.FlagLanded, Stream: stream, Pos: pos}, make([]byte, framing.LargeSize)}
	l.Encode(f.payload)
	return f
}

// ringOfOthers announces writes to rings that were granted to others, or to nobody.
func ringOfOthers(h *hostile) error {
	if err := h.open(1); err != nil {
		return err
	}
	for lease := range uint16(16) {
		if err := h.send(announce(1, 0, framing.Large{Lease: lease, Length: 1000})); err != nil {
			return err
		}
	}
	return nil
}

// leased opens a stream and returns the lease of the ring that it is granted.
func (h *hostile) leased() (framing.Lease, error) {
	if err := h.open(1); err != nil {
		return framing.Lease{}, err
	}
	return h.lease(1)
}

func beyondRing(h *hostile) error {
	l, err := h.leased()
	if err != nil {
		return err
	}
	return ended(h.send(announce(1, 0, framing.Large{Lease: l.Index, Length: l.Chunk + 1})))
}

func sameWriteTwice(h *hostile) error {
	l, err := h.leased()
	if err != nil {
		return err
	}
	for range 2 {
		if err := h.send(announce(1, 1<<20, framing.Large{Lease: l.Index, Seq: 3, Length: 1000, Ring: 5000})); err != nil {
			return ended(err)
		}
	}
	return nil
}

// othersLeases writes to its own ring with completion data that names the leases of
// others, among them the good client's.
func othersLeases(h *hostile) error {
	l, err := h.leased()
	if err != nil {
		return err
	}
	for lease := range max(l.Index, 4) + 1 {
		if lease == l.Index {
			continue
		}
		for seq := range uint16(4096) { // any 64 consecutive numbers may be expected, and these are 16 apart
			op := fabric.Op{
				Kind: fabric.WriteData, Buf: h.mem.Bytes()[hostileOut:][:8], Desc: h.desc, Remote: l.Addr, Key: l.Key,
				Data: framing.MakeImmediate(lease, seq*16, seq%2 == 0).Proven(h.proof),
			}
			if err := h.post(op); err != nil {
				return ended(err)
			}
		}
	}
	return ended(h.settle())
}

// badKeys writes where it may not. The provider prevents that, and may close the
// connection below.
func badKeys(h *hostile) error {
	l, err := h.leased()
	if err != nil {
		return err
	}
	for _, x := range []struct{ addr, key uint64 }{
		{l.Addr, l.Key + 1}, {l.Addr, 0}, {l.Addr + l.Size + 1<<30, l.Key}, {1 << 62, l.Key}, {l.Addr - 4096, l.Key},
	} {
		if err := h.write(x.addr, x.key, 4096, framing.MakeImmediate(l.Index, 0, false)); err != nil {
			return ended(err)
		}
	}
	return ended(h.settle())
}

func twoEnds(h *hostile) error {
	if err := h.open(1); err != nil {
		return err
	}
	return h.endTwice()
}

// endTwice says that the first stream ends at one position, and then that it ends at another.
func (h *hostile) endTwice() error {
	for pos := range uint64(2) {
		if err := h.send(frame{Header: framing.Header{Type: framing.TypeFin, Stream: 1, Pos: 100 + pos}}); err != nil {
			return ended(err)
		}
	}
	return nil
}

// foreignSignals sends something other than signals on the control connection.
func foreignSignals(h *hostile) error {
	_, err := h.tcp.Write(append(framing.AppendHeartbeat(nil, h.Sent()), "GET / HTTP/1.1"...))
	return err
}

// floodOfHeartbeats sends heartbeats without a pause on the control connection, each by itself. The
// listener closes that long before it would for the fabric's silence.
func floodOfHeartbeats(h *hostile) error {
	for range 1 << 17 {
		if _, err := h.tcp.Write(framing.AppendHeartbeat(nil, h.Sent())); err != nil {
			return nil
		}
	}
	return errors.New("no end of heartbeats")
}

// anothersName opens streams under the name of the good client's endpoint, to which the
// listener's answers then go. In the end it breaks the protocol, so that the listener
// forgets that name.
func anothersName(h *hostile) error {
	for stream := range uint32(20) {
		if err := h.send(h.opening(stream+1, h.number)); err != nil {
			return ended(err)
		}
	}
	return ended(h.send(h.opening(1, h.number)))
}

// phantomMessages claims in heartbeats that it has sent messages which never come, more each time.
func phantomMessages(h *hostile) error {
	if err := h.open(1); err != nil {
		return err
	}
	for begin := time.Now(); time.Since(begin) < rdmanet.DefaultDeadAfter; time.Sleep(100 * time.Millisecond) {
		if _, err := h.tcp.Write(framing.AppendHeartbeat(nil, h.claim.Add(1<<20))); err != nil || h.cutOff(0) {
			return nil
		}
	}
	return errors.New("nobody misses its messages")
}
