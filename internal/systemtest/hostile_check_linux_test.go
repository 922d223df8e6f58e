//go:build linux && cgo

package systemtest

import (
	"errors"
	"slices"
	"time"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
)

// check does as much of the path check (SPEC.md, section 5.1) as it takes to be let in.
func (h *hostile) check() error {
	const stream = 1 << 31
	if err := h.send(h.opening(stream, 0)); err != nil {
		return err
	}
	if _, err := h.await(framing.TypeAccept); err != nil {
		return err
	}
	eager := min(h.remote.Eager, hostileEager) - framing.HeaderSize
	large, err := h.grantRing(stream)
	if err != nil {
		return err
	}
	pattern := make([]byte, eager+large)
	framing.FillPattern(pattern, h.proof, 0)
	if err := h.send(h.data(stream, 0, pattern[:eager])); err != nil {
		return err
	}
	l, err := h.awaitLease()
	for n := uint32(0); err == nil && n < large; n += l.Chunk {
		w := framing.Large{Lease: l.Index, Seq: uint16(n / l.Chunk), Length: l.Chunk, Ring: uint64(n)}
		err = h.writeLarge(&l, stream, uint64(eager+n), w, pattern[eager+n:][:l.Chunk])
	}
	for begin, told := time.Now(), uint32(0); err == nil; h.poll() {
		if slices.ContainsFunc(h.got, func(f frame) bool { return f.Type == framing.TypeFin }) {
			return nil // what came was right
		}
		if h.received != told && !h.mute {
			told = h.received
			err = h.send(frame{Header: framing.Header{Type: framing.TypeCredit}})
		}
		if time.Since(begin) > rdmatest.Patience/2 {
			err = errors.New("no end from the listener")
		}
	}
	return err
}

// hostileRing is how large the ring for a path check is, in bytes.
const hostileRing = 64 << 10

// grantRing grants the listener the ring for its path check, and returns its size.
func (h *hostile) grantRing(stream uint32) (size uint32, err error) {
	l := framing.Lease{Chunk: hostileRing / 2, Size: hostileRing}
	if h.fab.Attr().SameHost {
		l.Chunk, l.Size = l.Chunk/4, l.Size/4
		h.shared, l.Remote, err = h.shares(int(l.Size))
	} else {
		r := h.landing.Region()
		l.Remote = framing.Remote{Addr: r.Base(), Key: r.Key()}
	}
	if err != nil {
		return 0, err
	}
	f := frame{framing.Header{Type: framing.TypeLease, Stream: stream, Window: 64 << 10}, make([]byte, framing.LeaseSize)}
	l.Encode(f.payload)
	return uint32(l.Size), h.send(f)
}

// writeLarge makes the write w of b, and announces it. b belongs at pos in the stream.
func (h *hostile) writeLarge(l *framing.Lease, stream uint32, pos uint64, w framing.Large, b []byte) error {
	f, attr := announce(stream, pos, w), h.fab.Attr()
	if !attr.SameHost && attr.CQDataSize >= 8 { // the completion data says so
		f.Flags = 0
	}
	if err := h.settle(); err != nil {
		return err
	}
	if attr.SameHost {
		slab, err := h.mapped(l.Remote)
		if err != nil {
			return err
		}
		defer slab.Close()
		copy(slab.Bytes()[l.Addr+w.Ring:], b)
		return h.send(f)
	}
	op := fabric.Op{
		Kind: fabric.Write, Buf: h.mem.Bytes()[hostileOut+hostileEager:][:len(b)], Desc: h.desc, Remote: l.Addr + w.Ring, Key: l.Key,
		Data: framing.MakeImmediate(w.Lease, w.Seq, false).Proven(h.proof),
	}
	copy(op.Buf, b)
	if f.Flags&framing.FlagLanded == 0 {
		op.Kind = fabric.WriteData
		if err := h.awaitCredit(); err != nil {
			return err
		}
		h.used++
	}
	if err := h.post(op); err != nil {
		return err
	}
	return h.send(f)
}
