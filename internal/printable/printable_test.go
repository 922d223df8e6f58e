package printable

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"testing"
	"testing/iotest"
	"unicode"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// hostile has what a terminal, a log or a page could take for something else: an escape, ends of lines,
// a C1 control, marks that reverse what is read, spaces that look like ' ', and what is no UTF-8.
const hostile = "a\x1b[2J\r\nb\tc\u009bd\u202ee\u2066f\u200b\u00a0\u2028\xff\ufffdé日😀\U000e0041"

func TestTexts(t *testing.T) {
	assert.Equal(t, "a?[2J??b?c?d?e?f?????é日😀?", Text(hostile))
	assert.Equal(t, "a?[2J?\nb\tc?d?e?f?????é日😀?", Lines(hostile))
	assert.Equal(t, "a?[2J?; b?c?d?e?f?????é日😀?", Line(hostile))
	for _, same := range []string{"", "shm: no space left", `"schön"`, "日本 😀"} {
		assert.Equal(t, same, Text(same))
	}
}

func TestName(t *testing.T) {
	for name, want := range map[string]string{
		"file": "file", "a b": "a b", "ü": "ü", "": `""`,
		"a\nb": `"a\nb"`, "a\xff": `"a\xff"`, "a\ufffd": "a\ufffd", "\u202efdp.x": `"\u202efdp.x"`, `"a"`: `"\"a\""`, `a\nb`: `"a\\nb"`,
	} {
		assert.Equal(t, want, Name(name))
	}
	assert.NotEqual(t, Name("a\xff"), Name("a\xfe"))
	assert.NotEqual(t, Name("a\n"), Name(`"a\n"`), "quotes are not forged")
}

func TestJSON(t *testing.T) {
	text, err := json.Marshal([]string{hostile})
	require.NoError(t, err)
	escaped := JSON(append(text, '\n'))
	for _, r := range string(escaped) {
		assert.True(t, r == '\n' || unicode.IsPrint(r), "%q", r)
	}
	var want, got []string
	require.NoError(t, json.Unmarshal(text, &want))
	require.NoError(t, json.Unmarshal(escaped, &got))
	assert.Equal(t, want, got)
}

func TestError(t *testing.T) {
	assert.NoError(t, Error(nil))
	plain := errors.New("plain")
	assert.Same(t, plain, Error(plain))
	err := Error(&os.PathError{Op: "open", Path: "a\x1bb", Err: os.ErrNotExist})
	assert.EqualError(t, err, "open a?b: file does not exist")
	assert.ErrorIs(t, err, os.ErrNotExist)
	assert.ErrorAs(t, err, new(*os.PathError))
}

// TestWriter: runes may be torn, wherever a reader tears them.
func TestWriter(t *testing.T) {
	var b bytes.Buffer
	w := &Writer{W: &b}
	n, err := io.Copy(w, iotest.OneByteReader(bytes.NewReader([]byte(hostile))))
	require.NoError(t, err)
	assert.EqualValues(t, len(hostile), n)
	assert.Equal(t, Lines(hostile), b.String())
	_, err = (&Writer{W: writerFunc(func([]byte) (int, error) { return 0, io.ErrClosedPipe })}).Write([]byte("a"))
	assert.ErrorIs(t, err, io.ErrClosedPipe)
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }
