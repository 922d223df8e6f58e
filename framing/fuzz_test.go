package framing

import (
	"bytes"
	"encoding/binary"
	"reflect"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// All fuzz targets check the same property: whatever can be decoded can be encoded again, that
// decodes to the same value, and nothing panics. Seeds are in testdata/fuzz.

func FuzzHeader(f *testing.F) {
	h := sampleHeader()
	frame := append(make([]byte, HeaderSize), "abc"...)
	h.Encode(frame)
	f.Add(frame)
	f.Fuzz(func(t *testing.T, frame []byte) {
		var h Header
		payload, err := h.Decode(frame)
		if err != nil {
			return
		}
		again := append(make([]byte, HeaderSize), payload...)
		h.Encode(again)
		if !bytes.Equal(frame, again) {
			t.Fatalf("%x became %x", frame, again)
		}
	})
}

func FuzzPayloads(f *testing.F) {
	for _, n := range []int{AcceptSize, OpenSize, 8, LargeSize, CreditSize, LeaseSize, 2 * CreditSize} {
		f.Add(bytes.Repeat([]byte{1}, n))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		same := func(n int, encode func([]byte)) {
			again := make([]byte, n)
			encode(again)
			if !bytes.Equal(b, again) {
				t.Fatalf("%x became %x", b, again)
			}
		}
		for size, p := range map[int]payload{LargeSize: new(Large), AcceptSize: new(Accept), OpenSize: new(Open)} {
			if p.Decode(b) == nil {
				same(size, p.Encode)
			}
		}
		if c, err := DecodeReset(b); err == nil {
			same(ResetSize, c.Encode)
		}
		if l := (Lease{}); l.Decode(b) == nil {
			again := make([]byte, LeaseSize)
			l.Encode(again) // the reserved bytes become 0
			var l2 Lease
			if err := l2.Decode(again); err != nil || l != l2 {
				t.Fatalf("%+v became %+v: %v", l, l2, err)
			}
			if l.Size == 0 || l.Size > MaxRing || uint64(l.Chunk) > l.Size || l.Index > MaxLease {
				t.Fatalf("impossible lease %+v", l)
			}
		}
		if len(b) == 8 {
			data := binary.LittleEndian.Uint64(b)
			i := Immediate(data)
			if again := MakeImmediate(i.Lease(), i.Seq(), i.Continues()); i&^(1<<15) != again || i.Lease() > MaxLease {
				t.Fatalf("%#x became %#x", i, again)
			}
			if i.Proven(data) != data || !Proven(data, data) || Proven(data, data^1<<32) || Proven(data, data^1<<63) {
				t.Fatalf("%#x and its proof", data)
			}
		}
		n := 0
		if DecodeCredits(b, func(Credit) { n++ }) == nil && n*CreditSize != len(b) {
			t.Fatalf("%d credits in %d bytes", n, len(b))
		}
	})
}

func FuzzHello(f *testing.F) {
	h := sampleHello()
	f.Add(encoded(f, &h))
	f.Fuzz(func(t *testing.T, b []byte) {
		var h Hello
		if roundTrip(t, b, &h) && (len(h.Offers) > MaxOffers || len(h.PageName) > MaxName) {
			t.Fatalf("impossible hello %+v", h)
		}
	})
}

// FuzzMessage decodes whole messages as a reader would.
func FuzzMessage(f *testing.F) {
	for _, m := range sampleMessages() {
		b, err := AppendMessage(nil, m.kind, m.body)
		require.NoError(f, err)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < LengthSize {
			return
		}
		n, err := DecodeLength(b[:LengthSize])
		if err != nil || n > len(b)-LengthSize {
			return
		}
		kind, body, err := SplitMessage(b[LengthSize : LengthSize+n])
		if err != nil {
			return
		}
		switch kind {
		case KindHello:
			roundTrip(t, body, new(Hello))
		case KindSelect, KindAttach:
			m := new(Attach)
			roundTrip(t, body, m, &m.Refused)
		case KindReject:
			m := new(Reject)
			roundTrip(t, body, m, &m.Text)
		case KindDecline:
			m := new(Decline)
			roundTrip(t, body, m, &m.Text)
		case KindJoin:
			roundTrip(t, body, new(Join))
		default:
			_ = DecodeEmpty(body)
		}
	})
}

// roundTrip reports whether a body can be decoded. If so, what it means can be encoded, and means the same again,
// and its texts can be shown.
func roundTrip[T any, M interface {
	*T
	Body
}](t *testing.T, body []byte, m M, texts ...*string) bool {
	t.Helper()
	if DecodeBody(body, m) != nil {
		return false
	}
	again := M(new(T))
	b, err := m.fields().append(nil)
	if err != nil {
		t.Fatalf("%+v does not encode: %v", m, err)
	}
	if err := DecodeBody(b, again); err != nil {
		t.Fatalf("%x does not decode: %v", b, err)
	}
	if !reflect.DeepEqual(m, again) {
		t.Fatalf("%+v became %+v", m, again)
	}
	for _, s := range texts {
		if len(*s) > MaxText || !utf8.ValidString(*s) || bytes.ContainsAny([]byte(*s), "\x00\x1b\n\r") {
			t.Fatalf("text %q", *s)
		}
	}
	return true
}

func FuzzPreamble(f *testing.F) {
	f.Add((&Preamble{Version: Version, TLS: true}).Append(nil))
	f.Add([]byte("GET / HT"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var p, again Preamble
		if p.Decode(b) != nil {
			return
		}
		if err := again.Decode(p.Append(nil)); err != nil || p != again {
			t.Fatalf("%+v became %+v: %v", p, again, err)
		}
	})
}
