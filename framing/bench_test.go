package framing

import (
	"fmt"
	"testing"
)

// BenchmarkPayload encodes and decodes each kind of payload by a function value, which takes about a nanosecond.
func BenchmarkPayload(b *testing.B) {
	large := Large{Lease: 1, Seq: 2, Length: 64 << 10, Ring: 1 << 20}
	lease := Lease{Index: 1, Chunk: 64 << 10, Size: 1 << 20, Remote: Remote{Addr: 1 << 40, Key: 7}}
	open := Open{Listener: 7}
	for _, p := range []struct {
		name   string
		size   int
		encode func([]byte)
		decode func([]byte) error
	}{
		{"large", LargeSize, large.Encode, large.Decode},
		{"lease", LeaseSize, func(b []byte) { lease.Encode(b) }, lease.Decode},
		{"open", OpenSize, open.Encode, open.Decode},
		{"reset", ResetSize, ResetAbort.Encode, func(b []byte) error { _, err := DecodeReset(b); return err }},
	} {
		buf := make([]byte, p.size)
		b.Run("op=encode/payload="+p.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				p.encode(buf)
			}
		})
		b.Run("op=decode/payload="+p.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := p.decode(buf); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkCredits encodes and decodes Credit frames with the credits of one stream and of many.
func BenchmarkCredits(b *testing.B) {
	for _, entries := range []int{1, 64} {
		buf := make([]byte, entries*CreditSize)
		b.Run(fmt.Sprintf("op=encode/entries=%d", entries), func(b *testing.B) {
			b.ReportAllocs()
			c := Credit{Window: 64 << 10, Ring: 1 << 20}
			for b.Loop() {
				for i := range entries {
					c.Stream = uint32(i)
					c.Encode(buf[i*CreditSize:])
				}
			}
		})
		b.Run(fmt.Sprintf("op=decode/entries=%d", entries), func(b *testing.B) {
			b.ReportAllocs()
			var window uint64
			take := func(c Credit) { window = max(window, c.Window) }
			for b.Loop() {
				if err := DecodeCredits(buf, take); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkImmediate(b *testing.B) {
	b.ReportAllocs()
	var seq uint16
	for b.Loop() {
		i := MakeImmediate(3, seq, true)
		if i.Seq() != seq || i.Lease() != 3 || !i.Continues() {
			b.Fatal(i)
		}
		seq = (seq + 1) & maxSeq
	}
}

// BenchmarkRing measures where the next write lies in the landing ring.
func BenchmarkRing(b *testing.B) {
	b.ReportAllocs()
	const size = 1 << 20
	pos := uint64(0)
	for b.Loop() {
		pos += RingSpan(pos, size, 48<<10)
		if RingOffset(pos, size) >= size {
			b.Fatal(pos)
		}
	}
}
