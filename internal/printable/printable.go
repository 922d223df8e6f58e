// Package printable has the one rule for what others have sent and people read: what is not printable
// (unicode.IsPrint) does not reach a terminal, a log or a page, where it could move the cursor, begin a
// line of its own, or reverse what is read. Control and format characters are not printable, nor are
// spaces other than ' ' or bytes that are not UTF-8.
package printable

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// is reports whether a rune is printable. What is not UTF-8 comes as RuneError.
func is(r rune) bool { return r != utf8.RuneError && unicode.IsPrint(r) }

// Text returns a text with '?' in place of what is not printable.
func Text(s string) string { return replace(s, "") }

// Lines is Text for texts that may have several lines and tabs.
func Lines(s string) string { return replace(s, "\n\t") }

func replace(s, except string) string {
	return strings.Map(func(r rune) rune {
		if is(r) || strings.ContainsRune(except, r) {
			return r
		}
		return '?'
	}, s)
}

// Line is Text for texts that may have several lines, such as those of errors.Join, and are to have one.
func Line(s string) string { return Text(strings.ReplaceAll(s, "\n", "; ")) }

// Name returns a name as it is, or quoted as in Go if something in it is not printable, so that
// different names look different.
func Name(s string) string {
	if quoted := strconv.Quote(s); s == "" || quoted[1:len(quoted)-1] != s {
		return quoted
	}
	return s
}

// JSON returns a JSON text in which what is not printable is escaped. It means the same.
func JSON(text []byte) []byte {
	var b []byte
	for _, r := range string(text) {
		switch {
		case is(r) || r == '\n':
			b = utf8.AppendRune(b, r)
		case r > 0xffff:
			r -= 0x10000
			b = fmt.Appendf(b, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		default:
			b = fmt.Appendf(b, `\u%04x`, r)
		}
	}
	return b
}

// Error returns err, or an error around it whose text is printable, if that of err is not.
func Error(err error) error {
	if err == nil || Text(err.Error()) == err.Error() {
		return err
	}
	return printed{err}
}

type printed struct{ error }

func (e printed) Error() string { return Text(e.error.Error()) }
func (e printed) Unwrap() error { return e.error }

// Writer passes on what is written to it as Lines does.
type Writer struct {
	W    io.Writer
	part []byte // the beginning of a rune
}

// Write keeps back a rune of which a part is missing. What is missing at the end is lost.
func (w *Writer) Write(b []byte) (int, error) {
	text := append(w.part, b...)
	whole := len(text)
	for i := 1; i < utf8.UTFMax && i <= len(text); i++ {
		if last := text[len(text)-i:]; utf8.RuneStart(last[0]) {
			if !utf8.FullRune(last) {
				whole -= i
			}
			break
		}
	}
	w.part = append([]byte(nil), text[whole:]...)
	if _, err := io.WriteString(w.W, Lines(string(text[:whole]))); err != nil {
		return 0, err
	}
	return len(b), nil
}
