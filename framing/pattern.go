package framing

import (
	"bytes"
	"encoding/binary"
)

// FillPattern fills b with the pattern of a seed, from byte from on, which path checks move: the outputs of
// SplitMix64, as SPEC.md section 5.1 defines them.
func FillPattern(b []byte, seed, from uint64) {
	for word := [8]byte{}; len(b) > 0; {
		n := from / 8
		if from%8 == 0 {
			for ; len(b) >= len(word); b, n = b[len(word):], n+1 {
				binary.LittleEndian.PutUint64(b, splitMix64(seed, n))
			}
			from = 8 * n
		}
		binary.LittleEndian.PutUint64(word[:], splitMix64(seed, n))
		m := copy(b, word[from%8:])
		b, from = b[m:], from+uint64(m)
	}
}

// HasPattern reports whether b is the pattern of a seed, from byte from on.
func HasPattern(b []byte, seed, from uint64) bool {
	var want [512]byte
	for len(b) > 0 {
		n := min(len(b), len(want))
		if FillPattern(want[:n], seed, from); !bytes.Equal(b[:n], want[:n]) {
			return false
		}
		b, from = b[n:], from+uint64(n)
	}
	return true
}

// splitMix64 is output n of SplitMix64, which depends on no other.
func splitMix64(seed, n uint64) uint64 {
	z := seed + (n+1)*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
