package framing

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func sampleHello() Hello {
	return Hello{
		Process: [16]byte{1, 2}, Host: [16]byte{3, 4}, UID: 1000, Listener: 5,
		Offers: []Offer{
			{Provider: "shm", Fabric: "shm", Domain: "shm", Library: "1.17", Protocol: 9, ProtocolVersion: 1, SameHost: true},
			{Provider: "tcp;ofi_rxm", Protocol: 1<<32 - 1, ProtocolVersion: 1<<32 - 1, Settings: "SIZE=8448 LIMIT=1"},
		},
		PageName: "fabricnet-0123456789abcdef0123456789abcdef", PageNonce: [16]byte{6}, Silence: 15000, HostUnknown: "open boot_id: no such file", Unoffered: []string{"tcp", "shm: no room in /dev/shm"}, Joins: true,
	}
}

func sampleAttach() Attach {
	return Attach{Provider: "shm", Name: []byte("fi_shm://1:2:3\x00"), Peer: 4, Token: [16]byte{5}, Slots: 64, Eager: MinEager, Rule: MaxRule, Refused: "cxi: no such device"}
}

// encoded is a body as it is sent.
func encoded(t testing.TB, body Body) []byte {
	t.Helper()
	b, err := body.fields().append(nil)
	require.NoError(t, err)
	return b
}

func TestHelloRoundTrip(t *testing.T) {
	for _, want := range []Hello{sampleHello(), {}, {PageNonce: [16]byte{15: 1}}} {
		b, err := want.fields().append([]byte("before"))
		require.NoError(t, err)
		require.Equal(t, "before", string(b[:6]))
		got := Hello{Listener: 99, Offers: make([]Offer, 3)} // all of it is overwritten
		require.NoError(t, DecodeBody(b[6:], &got))
		assert.Equal(t, want, got)
	}
}

func TestHelloErrors(t *testing.T) {
	long := strings.Repeat("x", MaxName+1)
	for _, tt := range []struct {
		name   string
		change func(h *Hello)
		want   error
	}{
		{"page name too long", func(h *Hello) { h.PageName = long }, ErrTooLong},
		{"page name without nonce", func(h *Hello) { h.PageNonce = [16]byte{} }, ErrField},
		{"too many offers", func(h *Hello) { h.Offers = make([]Offer, MaxOffers+1) }, ErrTooLong},
		{"offer without provider", func(h *Hello) { h.Offers[1].Provider = "" }, ErrField},
		{"provider too long", func(h *Hello) { h.Offers[0].Provider = long }, ErrTooLong},
		{"settings too long", func(h *Hello) { h.Offers[0].Settings = long }, ErrTooLong},
		{"fabric too long", func(h *Hello) { h.Offers[0].Fabric = long }, ErrTooLong},
		{"domain too long", func(h *Hello) { h.Offers[0].Domain = long }, ErrTooLong},
		{"library too long", func(h *Hello) { h.Offers[0].Library = long }, ErrTooLong},
		{"provider with an escape", func(h *Hello) { h.Offers[0].Provider = "shm\x1b[2J" }, ErrField},
		{"provider with a line", func(h *Hello) { h.Offers[0].Provider = "shm\nlevel=ERROR" }, ErrField},
		{"provider with a reason", func(h *Hello) { h.Offers[0].Provider = "shm: no; net" }, ErrField},
		{"provider in other letters", func(h *Hello) { h.Offers[0].Provider = "ѕhm" }, ErrField},
	} {
		h := sampleHello()
		tt.change(&h)
		b, err := h.fields().append(nil)
		assert.ErrorIs(t, err, tt.want, tt.name)
		assert.Empty(t, b, tt.name)
	}
}

// typeOf is the type of the field with that name.
func typeOf(m interface{ fields() fields }, name string) uint16 {
	for _, f := range m.fields() {
		if f.name == name {
			return f.typ
		}
	}
	panic("no field " + name)
}

// replace returns body with value in every field of type typ; nil removes the field.
func replace(body []byte, typ uint16, value []byte) []byte {
	var out []byte
	for len(body) > 0 {
		n := tlvHeader + int(binary.LittleEndian.Uint16(body[2:]))
		switch {
		case binary.LittleEndian.Uint16(body) != typ:
			out = append(out, body[:n]...)
		case value != nil:
			out = appendTLV(out, typ, value...)
		}
		body = body[n:]
	}
	return out
}

func TestHelloDecodeErrors(t *testing.T) {
	h := sampleHello()
	good := encoded(t, &h)
	one := encoded(t, &Offer{Provider: "x", Fabric: "f", Domain: "d", Library: "l"})
	offers := func(n int) []byte {
		b := replace(good, typeOf(new(Hello), "offer"), nil)
		for range n {
			b = appendTLV(b, typeOf(new(Hello), "offer"), one...)
		}
		return b
	}
	offer := func(b []byte) []byte { return replace(good, typeOf(new(Hello), "offer"), b) }
	with := func(field string, value []byte) []byte { return replace(good, typeOf(new(Hello), field), value) }
	of := func(field string, value []byte) []byte { return offer(replace(one, typeOf(new(Offer), field), value)) }
	long := bytes.Repeat([]byte("x"), MaxName+1)
	for _, tt := range []struct {
		name string
		body []byte
		want error
	}{
		{"empty", nil, ErrMissing}, {"no process", with("process", nil), ErrMissing},
		{"only what is required", replace(with("offer", nil), typeOf(new(Hello), "page"), nil), nil},
		{"short process", with("process", make([]byte, 15)), ErrField},
		{"long host", with("host", make([]byte, 17)), ErrField},
		{"short user id", with("user id", make([]byte, 3)), ErrField},
		{"long listener", with("listener", make([]byte, 5)), ErrField},
		{"page without nonce", with("page", []byte("short")), ErrField},
		{"page with a zero nonce", with("page", make([]byte, 20)), ErrField},
		{"page name too long", with("page", bytes.Repeat([]byte("x"), 16+MaxName+1)), ErrTooLong},
		{"half a field header", append(bytes.Clone(good), 1), ErrTruncated},
		{"half a field", good[:len(good)-1], ErrTruncated},
		{"process twice", append(bytes.Clone(good), good[:20]...), ErrRepeated},
		{"unknown field", appendTLV(bytes.Clone(good), 500, 1, 2), nil},
		{"unknown field 0", appendTLV(bytes.Clone(good), 0), nil},
		{"unknown field to understand", appendTLV(bytes.Clone(good), 500|critical, 1, 2), ErrCritical},
		{"known field to understand", append(with("user id", nil), appendTLV(nil, typeOf(new(Hello), "user id")|critical, 1, 0, 0, 0)...), nil},
		{"most offers", offers(MaxOffers), nil}, {"too many offers", offers(MaxOffers + 1), ErrTooLong},
		{"empty offer", offer([]byte{}), ErrMissing},
		{"provider with an escape", of("provider", []byte("x\x1b[2J")), ErrField},
		{"provider that is no text", of("provider", []byte("x\xff")), ErrField},
		{"provider with a space", of("provider", []byte("x y")), ErrField},
		{"offer without provider", of("provider", nil), ErrMissing},
		{"offer of no name", of("provider", []byte{}), ErrField},
		{"offer without protocol", of("protocol", nil), ErrMissing},
		{"short protocol", of("protocol", make([]byte, 4)), ErrField},
		{"provider too long", of("provider", long), ErrTooLong}, {"fabric too long", of("fabric", long), ErrTooLong},
		{"domain too long", of("domain", long), ErrTooLong}, {"library too long", of("library", long), ErrTooLong},
		{"same host with a value", offer(appendTLV(bytes.Clone(one), typeOf(new(Offer), "same host"), 1)), ErrField},
		{"provider twice", offer(append(bytes.Clone(one), one...)), ErrRepeated},
		{"truncated offer", offer(one[:len(one)-1]), ErrTruncated},
		{"offer with a field to understand", offer(appendTLV(bytes.Clone(one), 77|critical)), ErrCritical},
	} {
		assert.ErrorIs(t, DecodeBody(tt.body, new(Hello)), tt.want, tt.name)
	}
}

// TestOfferLabels: the other texts in an offer are cleaned instead of refused, since interfaces can have any name.
func TestOfferLabels(t *testing.T) {
	h := sampleHello()
	h.Offers = []Offer{{Provider: "x", Fabric: "a\nb", Domain: "eth\x1b[2J", Library: "1\xff", Settings: "A=\r"}}
	b := encoded(t, &h)
	require.NoError(t, DecodeBody(b, &h))
	assert.Equal(t, []Offer{{Provider: "x", Fabric: "a?b", Domain: "eth?[2J", Library: "1?", Settings: "A=?"}}, h.Offers)
}

func TestAttachRoundTrip(t *testing.T) {
	want := sampleAttach()
	b := encoded(t, &want)
	var got Attach
	require.NoError(t, DecodeBody(b, &got))
	assert.Equal(t, want, got)
	clear(b)
	assert.Equal(t, want, got, "what is decoded is a copy")
}

// TestAttachRefused: the reasons are optional, and come out as clean text of bounded length whatever the peer sends.
func TestAttachRefused(t *testing.T) {
	for _, tt := range awkwardTexts {
		a := sampleAttach()
		a.Refused = tt.text
		b := encoded(t, &a)
		assert.Equal(t, tt.text == "", bytes.Equal(b, replace(b, typeOf(new(Attach), "refused"), nil)), "no field without a text")
		var got Attach
		require.NoError(t, DecodeBody(b, &got))
		assert.Equal(t, tt.want, got.Refused)
	}
	a := sampleAttach()
	good := encoded(t, &a)
	var got Attach
	require.NoError(t, DecodeBody(replace(good, typeOf(new(Attach), "refused"), []byte("a\x1b]0;b\xff")), &got))
	assert.Equal(t, "a?]0;b?", got.Refused, "a peer need not clean its text")
	assert.ErrorIs(t, DecodeBody(replace(good, typeOf(new(Attach), "refused"), make([]byte, MaxText+1)), &got), ErrTooLong)
}

func TestAttachErrors(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(a *Attach)
		want   error
	}{
		{"no provider", func(a *Attach) { a.Provider = "" }, ErrField},
		{"provider with an escape", func(a *Attach) { a.Provider = "shm\x1b[2J" }, ErrField},
		{"provider too long", func(a *Attach) { a.Provider = strings.Repeat("x", MaxName+1) }, ErrTooLong},
		{"no name", func(a *Attach) { a.Name = nil }, ErrField},
		{"name too long", func(a *Attach) { a.Name = make([]byte, MaxEndpointName+1) }, ErrTooLong},
		{"too few slots", func(a *Attach) { a.Slots = MinSlots - 1 }, ErrField},
		{"too many slots", func(a *Attach) { a.Slots = MaxSlots + 1 }, ErrField},
		{"frames too small", func(a *Attach) { a.Eager = MinEager - 1 }, ErrField},
		{"frames too large", func(a *Attach) { a.Eager = MaxEager + 1 }, ErrField},
		{"no such rule", func(a *Attach) { a.Rule = MaxRule + 1 }, ErrField},
		{"most of everything", func(a *Attach) {
			a.Provider, a.Name, a.Slots, a.Eager = strings.Repeat("x", MaxName), make([]byte, MaxEndpointName), MaxSlots, MaxEager
		}, nil},
	} {
		a := sampleAttach()
		tt.change(&a)
		_, err := a.fields().append(nil)
		assert.ErrorIs(t, err, tt.want, tt.name)
	}
	a := sampleAttach()
	good := encoded(t, &a)
	for typ := typeOf(new(Attach), "provider"); typ <= typeOf(new(Attach), "rule"); typ++ {
		assert.ErrorIs(t, DecodeBody(replace(good, typ, nil), new(Attach)), ErrMissing, "field %d", typ)
	}
	for typ := typeOf(new(Attach), "peer"); typ <= typeOf(new(Attach), "rule"); typ++ {
		assert.ErrorIs(t, DecodeBody(replace(good, typ, []byte{1, 2, 3}), new(Attach)), ErrField, "field %d", typ)
	}
	for _, tt := range []struct {
		name  string
		value []byte
		want  error
	}{
		{"provider", []byte("x y"), ErrField}, {"provider", make([]byte, MaxName+1), ErrTooLong}, {"endpoint name", nil, ErrField},
		{"endpoint name", make([]byte, MaxEndpointName+1), ErrTooLong}, {"slots", []byte{MinSlots - 1, 0, 0, 0}, ErrField},
		{"slots", []byte{1, 0, MaxSlots >> 16, 0}, ErrField}, {"eager size", make([]byte, 4), ErrField}, {"rule", []byte{MaxRule + 1, 0, 0, 0}, ErrField},
	} {
		body := replace(good, typeOf(new(Attach), tt.name), append([]byte{}, tt.value...))
		assert.ErrorIs(t, DecodeBody(body, new(Attach)), tt.want, "%s: %x", tt.name, tt.value)
	}
}

// awkwardTexts has texts for people, and what they look like when they arrive.
var awkwardTexts = []struct{ text, want string }{
	{"", ""},
	{"shm: no space left", "shm: no space left"},
	{"schön", "schön"},
	{"a\nb\x1b[31mc\x00", "a?b?[31mc?"},
	{"bad \xff utf-8", "bad ? utf-8"},
	{"\u202edesrever\u2066\u200b\u00a0\u009b", "?desrever????"},
	{strings.Repeat("x", MaxText+10), strings.Repeat("x", MaxText)},
	{strings.Repeat("é", MaxText), strings.Repeat("é", MaxText/2)},
	{"x" + strings.Repeat("é", MaxText), "x" + strings.Repeat("é", MaxText/2-1)},
}

func TestRejectAndDecline(t *testing.T) {
	for _, tt := range awkwardTexts {
		b := encoded(t, &Reject{Code: RejectMemory, Text: tt.text})
		var r Reject
		require.NoError(t, DecodeBody(b, &r))
		assert.Equal(t, Reject{Code: RejectMemory, Text: tt.want}, r)
		assert.True(t, utf8.ValidString(r.Text))

		b = encoded(t, &Decline{Text: tt.text})
		var d Decline
		require.NoError(t, DecodeBody(b, &d))
		assert.Equal(t, tt.want, d.Text)
	}
	hostile := appendTLV(appendTLV(nil, typeOf(new(Reject), "code"), 1, 0, 0, 0), typeOf(new(Decline), "text"), []byte("a\x1b]0;b")...)
	var r Reject
	require.NoError(t, DecodeBody(hostile, &r))
	assert.Equal(t, "a?]0;b", r.Text, "a peer need not clean its text")
	long := make([]byte, MaxText+1)
	assert.ErrorIs(t, DecodeBody(nil, &r), ErrMissing)
	assert.ErrorIs(t, DecodeBody(appendTLV(nil, typeOf(new(Reject), "code"), 1), &r), ErrField)
	assert.ErrorIs(t, DecodeBody(appendTLV(appendTLV(nil, typeOf(new(Reject), "code"), 1, 0, 0, 0), typeOf(new(Decline), "text"), long...), &r), ErrTooLong)
	assert.ErrorIs(t, DecodeBody(appendTLV(nil, typeOf(new(Decline), "text"), long...), new(Decline)), ErrTooLong)
	assert.NoError(t, DecodeBody(nil, new(Decline)))
}

// TestProof pins the value, and shows that it depends on the token alone.
func TestProof(t *testing.T) {
	token := [16]byte{0: 1, 15: 2}
	p := Proof(token)
	assert.Equal(t, p, Proof(token))
	token[7]++
	assert.NotEqual(t, p, Proof(token))
	assert.Equal(t, "0x94e12dd3eb9927e2", fmt.Sprintf("%#x", Proof([16]byte{})))
}

// TestTextsOfErrors: however much a stranger sends, what is said of it is short.
func TestTextsOfErrors(t *testing.T) {
	for _, name := range [][]byte{bytes.Repeat([]byte{0x80}, 65000), bytes.Repeat([]byte("a"), 65000)} {
		offer := appendTLV(nil, typeOf(new(Offer), "provider"), name...)
		body := appendTLV(nil, typeOf(new(Hello), "process"), make([]byte, 16)...)
		err := DecodeBody(appendTLV(body, typeOf(new(Hello), "offer"), offer...), new(Hello))
		require.ErrorIs(t, err, ErrTooLong)
		assert.Less(t, len(err.Error()), MaxText)
		assert.ErrorIs(t, DecodeBody(appendTLV(nil, typeOf(new(Attach), "provider"), name...), new(Attach)), ErrTooLong)
	}
}
