package framing

import (
	"encoding/binary"
	"errors"
	"fmt"
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

func appendString(b []byte, typ uint16, s string) []byte {
	b = binary.LittleEndian.AppendUint16(b, typ)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(s)))
	return append(b, s...)
}

func appendUint32(b []byte, typ uint16, v uint32) []byte {
	return appendTLV(b, typ, binary.LittleEndian.AppendUint32(nil, v)...)
}

func appendUint64(b []byte, typ uint16, v uint64) []byte {
	return appendTLV(b, typ, binary.LittleEndian.AppendUint64(nil, v)...)
}

// field reads the value of one TLV. Each method names the field in its error.
type field struct {
	name  string
	value []byte
}

func (f field) fixed(n int) error {
	if len(f.value) != n {
		return fmt.Errorf("%s: %w: %d bytes, not %d", f.name, ErrField, len(f.value), n)
	}
	return nil
}

func (f field) uint32(v *uint32) error {
	if err := f.fixed(4); err != nil {
		return err
	}
	*v = binary.LittleEndian.Uint32(f.value)
	return nil
}

func (f field) id(v *[16]byte) error {
	if err := f.fixed(len(v)); err != nil {
		return err
	}
	copy(v[:], f.value)
	return nil
}

func (f field) string(v *string, limit int) error {
	if err := checkLen(f.name, len(f.value), limit); err != nil {
		return err
	}
	*v = string(f.value)
	return nil
}

// label reads a name that is only compared or shown to people.
func (f field) label(v *string) error {
	if err := f.string(v, MaxName); err != nil {
		return err
	}
	*v = cleanText(*v)
	return nil
}

func checkLen(name string, n, limit int) error {
	if n > limit {
		return fmt.Errorf("%s: %w: %d, the limit is %d", name, ErrTooLong, n, limit)
	}
	return nil
}

// schema describes the fields that one kind of message, or one nested field, may
// have. Its index is the TLV type.
type schema []rule

type rule struct {
	name     string
	required bool
	repeats  bool
}

// walk calls fn for each known field of b and checks the rules of the schema.
// Unknown fields are skipped; those marked as critical make it fail.
func (s schema) walk(b []byte, fn func(typ uint16, f field) error) error {
	var seen uint64
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
		if int(typ) >= len(s) || s[typ].name == "" {
			if raw&critical != 0 {
				return fmt.Errorf("%w: type %d", ErrCritical, typ)
			}
			continue
		}
		if seen&(1<<typ) != 0 && !s[typ].repeats {
			return fmt.Errorf("%w: %s", ErrRepeated, s[typ].name)
		}
		seen |= 1 << typ
		if err := fn(typ, field{s[typ].name, value}); err != nil {
			return err
		}
	}
	for typ, r := range s {
		if r.required && seen&(1<<typ) == 0 {
			return fmt.Errorf("%w: %s", ErrMissing, r.name)
		}
	}
	return nil
}
