package framing

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"unicode/utf8"

	"github.com/seed202c38ff/fabricnet/internal/printable"
)

// Errors of the handshake decoders and encoders. The errors that they return wrap
// one of these and name the field.
var (
	// ErrTruncated: the input ends in the middle of a field.
	ErrTruncated = errors.New("truncated")
	// ErrTooLong: a message, list, name or text exceeds its limit.
	ErrTooLong = errors.New("too long")
	// ErrField: a field has the wrong size or an impossible value.
	ErrField = errors.New("invalid field")
	// ErrMissing: a required field is absent.
	ErrMissing = errors.New("missing field")
	// ErrRepeated: a field that may occur only once occurs again.
	ErrRepeated = errors.New("repeated field")
	// ErrCritical: an unknown field is marked as one that must be understood.
	ErrCritical = errors.New("unknown field that must be understood")
)

// critical is the bit in a TLV's type that says "understand this or give up".
const critical = 1 << 15

const tlvHeader = 4

// appendTLV appends one field. The caller has checked that value fits.
func appendTLV(b []byte, typ uint16, value ...byte) []byte {
	b = binary.LittleEndian.AppendUint16(b, typ)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(value)))
	return append(b, value...)
}

// field is one field of a message: its type and name, and what it is kept in.
type field struct {
	typ   uint16
	name  string // for errors
	rule  rule
	value value
}

// rule says how often a field occurs.
type rule uint8

const (
	optional rule = iota // once at most
	required             // once
	repeated             // any number of times
)

// value is what a field is kept in.
type value interface {
	// append appends the field, once for each of its values; it leaves out texts and flags that are
	// not set. It fails if the value breaks a limit that decode enforces.
	append(b []byte, typ uint16) ([]byte, error)
	// decode reads one occurrence of the field.
	decode(b []byte) error
}

// fields are those of one kind of message, or of a nested field.
type fields []field

func (fs fields) append(b []byte) ([]byte, error) {
	for _, f := range fs {
		var err error
		if b, err = f.value.append(b, f.typ); err != nil {
			return nil, fmt.Errorf("%s: %w", f.name, err)
		}
	}
	return b, nil
}

// decode reads the fields of b, and checks their rules. Unknown fields are skipped; those
// marked as critical make it fail.
func (fs fields) decode(b []byte) error {
	var seen uint64 // a bit for each of fs
	for len(b) > 0 {
		if len(b) < tlvHeader {
			return fmt.Errorf("field header: %w", ErrTruncated)
		}
		raw := binary.LittleEndian.Uint16(b)
		n := int(binary.LittleEndian.Uint16(b[2:]))
		b = b[tlvHeader:]
		typ := raw &^ critical
		if n > len(b) {
			return fmt.Errorf("field %d: %w: %d bytes of %d", typ, ErrTruncated, len(b), n)
		}
		value := b[:n]
		b = b[n:]
		i := slices.IndexFunc(fs, func(f field) bool { return f.typ == typ })
		switch {
		case i < 0 && raw&critical != 0:
			return fmt.Errorf("%w: type %d", ErrCritical, typ)
		case i < 0:
			continue
		case seen&(1<<i) != 0 && fs[i].rule != repeated:
			return fmt.Errorf("%w: %s", ErrRepeated, fs[i].name)
		}
		seen |= 1 << i
		if err := fs[i].value.decode(value); err != nil {
			return fmt.Errorf("%s: %w", fs[i].name, err)
		}
	}
	for i, f := range fs {
		if f.rule == required && seen&(1<<i) == 0 {
			return fmt.Errorf("%w: %s", ErrMissing, f.name)
		}
	}
	return nil
}

func fixed(b []byte, n int) error {
	if len(b) != n {
		return fmt.Errorf("%w: %d bytes, not %d", ErrField, len(b), n)
	}
	return nil
}

func atMost(n, limit int) error {
	if n > limit {
		return fmt.Errorf("%w: %d, the limit is %d", ErrTooLong, n, limit)
	}
	return nil
}

// within is a number of four bytes that has limits.
type within struct {
	value       *uint32
	least, most uint32
}

// number is one that has none.
func number(value *uint32) within { return within{value, 0, math.MaxUint32} }

func (v within) append(b []byte, typ uint16) ([]byte, error) {
	return appendTLV(b, typ, binary.LittleEndian.AppendUint32(nil, *v.value)...), v.check()
}

func (v within) decode(b []byte) error {
	if err := fixed(b, 4); err != nil {
		return err
	}
	*v.value = binary.LittleEndian.Uint32(b)
	return v.check()
}

func (v within) check() error {
	if *v.value < v.least || *v.value > v.most {
		return fmt.Errorf("%w: %d, not %d to %d", ErrField, *v.value, v.least, v.most)
	}
	return nil
}

// octets is a field of as many bytes as it has.
type octets []byte

func (v octets) append(b []byte, typ uint16) ([]byte, error) { return appendTLV(b, typ, v...), nil }

func (v octets) decode(b []byte) error {
	copy(v, b)
	return fixed(b, len(v))
}

// flag is an empty field that is there or not.
type flag bool

func (v *flag) append(b []byte, typ uint16) ([]byte, error) {
	if *v {
		b = appendTLV(b, typ)
	}
	return b, nil
}

func (v *flag) decode(b []byte) error {
	*v = true
	return fixed(b, 0)
}

// words are for people: whatever is not printable becomes '?', on both sides.
type words struct {
	value *string
	most  int // bytes
}

// text is words that are cut off at MaxText bytes when they are sent.
func text(value *string) words { return words{value, MaxText} }

// label is a name that is shown to people, too.
func label(value *string) words { return words{value, MaxName} }

func (v words) append(b []byte, typ uint16) ([]byte, error) {
	clean := cleanText(*v.value)
	if clean != "" {
		b = appendTLV(b, typ, []byte(clean)...)
	}
	return b, atMost(len(clean), v.most)
}

func (v words) decode(b []byte) error {
	*v.value = cleanText(string(b))
	return atMost(len(b), v.most)
}

// texts is a field that occurs once for each of the texts.
type texts []string

func (v *texts) append(b []byte, typ uint16) ([]byte, error) {
	for _, s := range *v {
		b = appendTLV(b, typ, []byte(cleanText(s))...)
	}
	return b, atMost(len(*v), MaxOffers)
}

func (v *texts) decode(b []byte) error {
	var t string
	err := text(&t).decode(b)
	*v = append(*v, t)
	return cmp.Or(err, atMost(len(*v), MaxOffers))
}

// cleanText returns the text with whatever is not printable replaced, and cut off at MaxText bytes.
func cleanText(s string) string {
	s = printable.Text(s)
	if len(s) <= MaxText {
		return s
	}
	n := MaxText
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
