package filecopy

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"testing"
	"time"
	"unicode"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// receiver runs a receiver with a new directory until the test ends, and dials it.
func receiver(t *testing.T) (dir string, c *rdmanet.Conn) {
	t.Helper()
	return start(t, new(Receiver))
}

// start runs a receiver with a new directory until the test ends, and dials it. It reports to the
// test's log unless r says otherwise.
func start(t *testing.T, r *Receiver) (dir string, c *rdmanet.Conn) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "received")
	require.NoError(t, os.Mkdir(dir, 0o700))
	root, err := os.OpenRoot(dir)
	require.NoError(t, err)
	r.Root = root
	if r.Report == nil {
		r.Report = func(line string) { t.Log(line) }
	}
	l, err := rdmanet.Listen("rdma", testenv.Address())
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- r.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-served)
		assert.NoError(t, root.Close())
	})
	return dir, dial(t, l.Addr().String())
}

func dial(t *testing.T, address string) *rdmanet.Conn {
	t.Helper()
	c, err := rdmanet.Dial("rdma", address)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(20*time.Second)))
	return c.(*rdmanet.Conn)
}

// TestWhatIsStored: whatever a sender sends, right or wrong, a file appears under its
// name whole or not at all, and nothing appears elsewhere.
func TestWhatIsStored(t *testing.T) {
	text := bytes.Repeat([]byte("0123456789abcdef"), 500_000) // more than can be in flight to a receiver that has given up
	sum := sha256.Sum256(text)
	right := header{[]byte("file"), int64(len(text)), hex.EncodeToString(sum[:])}
	with := func(change func(*header)) header { h := right; change(&h); return h }
	for name, tt := range map[string]struct {
		header header
		text   []byte
		err    string
	}{
		"right":        {right, text, ""},
		"name in use":  {with(func(h *header) { h.Name = []byte("old") }), text, ""},
		"empty":        {header{[]byte("empty"), 0, hex.EncodeToString(sha256.New().Sum(nil))}, nil, ""},
		"up":           {with(func(h *header) { h.Name = []byte("../file") }), text, "not the name of a file"},
		"absolute":     {with(func(h *header) { h.Name = []byte("/tmp/file") }), text, "not the name of a file"},
		"below":        {with(func(h *header) { h.Name = []byte("link/file") }), text, "not the name of a file"},
		"parent":       {with(func(h *header) { h.Name = []byte("..") }), text, "not the name of a file"},
		"itself":       {with(func(h *header) { h.Name = []byte(".") }), text, "not the name of a file"},
		"no name":      {with(func(h *header) { h.Name = []byte("") }), text, "not the name of a file"},
		"too short":    {right, text[:len(text)-1], "1 of 8000000 bytes are missing"},
		"too long":     {right, append(text[:len(text):len(text)], 'x'), "more bytes than"},
		"other bytes":  {right, bytes.ToUpper(text), "SHA-256"},
		"negative":     {with(func(h *header) { h.Size = -1 }), text, "more bytes than"},
		"long header":  {with(func(h *header) { h.Name = bytes.Repeat([]byte("x"), maxHeader) }), nil, "buffer full"},
		"name of link": {with(func(h *header) { h.Name = []byte("link") }), text, ""}, // replaces the link
	} {
		t.Run(name, func(t *testing.T) {
			dir, c := receiver(t)
			require.NoError(t, os.WriteFile(filepath.Join(dir, "old"), []byte("old"), 0o600))
			require.NoError(t, os.Symlink("..", filepath.Join(dir, "link")))
			err := deliver(c, tt.header, bytes.NewReader(tt.text))
			names := []string{"link", "old"}
			if tt.err == "" {
				require.NoError(t, err)
				got, err := os.ReadFile(filepath.Join(dir, string(tt.header.Name)))
				require.NoError(t, err)
				assert.True(t, bytes.Equal(tt.text, got))
				if name := string(tt.header.Name); name != "link" && name != "old" {
					names = append([]string{name}, names...)
				}
			} else {
				assert.ErrorContains(t, err, tt.err)
			}
			assert.Equal(t, names, list(t, dir))
			assert.Equal(t, []string{"received"}, list(t, filepath.Dir(dir)))
		})
	}
}

func list(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// A sender that dies in the middle of a file leaves nothing behind, and the receiver goes on.
func TestBrokenOff(t *testing.T) {
	dir, c := receiver(t)
	require.NoError(t, json.NewEncoder(c).Encode(header{Name: []byte("file"), Size: 1 << 20}))
	_, err := c.Write(make([]byte, 1<<10))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return len(list(t, dir)) == 1 }, 20*time.Second, time.Millisecond, "it has begun")
	require.NoError(t, c.SetLinger(0))
	require.NoError(t, c.Close())
	require.Eventually(t, func() bool { return len(list(t, dir)) == 0 }, 20*time.Second, time.Millisecond)
}

// TestSend sends a file in the way in which the command does.
func TestSend(t *testing.T) {
	dir, c := receiver(t)
	file := filepath.Join(t.TempDir(), "file")
	want := bytes.Repeat([]byte("text"), 50_000)
	require.NoError(t, os.WriteFile(file, want, 0o600))
	sent, err := Send(t.Context(), new(rdmanet.Dialer), c.RemoteAddr().String(), file)
	require.NoError(t, err)
	assert.EqualValues(t, len(want), sent.Size)
	assert.Contains(t, sent.String(), "file: 200000 bytes in ")
	got, err := os.ReadFile(filepath.Join(dir, "file"))
	require.NoError(t, err)
	assert.True(t, bytes.Equal(want, got))
	_, err = Send(t.Context(), new(rdmanet.Dialer), c.RemoteAddr().String(), file+"2")
	assert.ErrorIs(t, err, os.ErrNotExist)
}

// nasty does something to a terminal, looks like two lines, reverses what is read, and is no UTF-8.
const nasty = "a\x1b[2J\nfrom 10.0.0.1:1: b\u202e\xff"

func isPrintable(t *testing.T, text string) {
	t.Helper()
	for _, r := range text {
		assert.True(t, r != unicode.ReplacementChar && unicode.IsPrint(r), "%q in %q", r, text)
	}
}

// TestNames: files have the names that they had at the sender, whatever these are, and each is
// reported in one line in which nothing is hidden.
func TestNames(t *testing.T) {
	lines := make(chan string, 10)
	dir, c := start(t, &Receiver{Report: func(line string) { lines <- line }})
	names := []string{nasty, "x\xfe", "x\xff", "x\ufffd", "x"}
	for _, name := range names {
		file := filepath.Join(t.TempDir(), name)
		require.NoError(t, os.WriteFile(file, []byte(name), 0o600))
		sent, err := Send(t.Context(), new(rdmanet.Dialer), c.RemoteAddr().String(), file)
		require.NoError(t, err)
		assert.Equal(t, name, sent.Name)
		line := <-lines
		if name != "x\ufffd" { // which is printable
			isPrintable(t, sent.String())
			isPrintable(t, line)
		}
	}
	got := list(t, dir)
	assert.ElementsMatch(t, names, got)
	for _, name := range got {
		text, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		assert.Equal(t, name, string(text))
	}
}

// TestHostileSender: a sender gets nothing into the receiver's report but printable text in one line,
// and finds nothing else in the verdict.
func TestHostileSender(t *testing.T) {
	for name, h := range map[string]header{
		"no name":      {Name: []byte("../" + nasty)},
		"another hash": {Name: []byte("file"), SHA256: nasty},
		"in use":       {Name: []byte(nasty), SHA256: hex.EncodeToString(sha256.New().Sum(nil))}, // by a directory
	} {
		t.Run(name, func(t *testing.T) {
			lines := make(chan string, 1)
			dir, c := start(t, &Receiver{Report: func(line string) { lines <- line }})
			require.NoError(t, os.Mkdir(filepath.Join(dir, nasty), 0o700))
			require.NoError(t, json.NewEncoder(c).Encode(h))
			require.NoError(t, c.CloseWrite())
			var v verdict
			require.NoError(t, json.NewDecoder(c).Decode(&v))
			assert.NotEmpty(t, v.Error)
			isPrintable(t, v.Error)
			line := <-lines
			assert.Contains(t, line, v.Error)
			isPrintable(t, line)
		})
	}
}

// TestHostileReceiver: the same the other way round.
func TestHostileReceiver(t *testing.T) {
	l, err := rdmanet.Listen("rdma", testenv.Address())
	require.NoError(t, err)
	defer l.Close()
	served := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			text, marshalErr := json.Marshal(verdict{Error: nasty})
			_, err = c.Write(text)
			_, copyErr := io.Copy(io.Discard, c)
			err = errors.Join(marshalErr, err, copyErr, c.Close())
		}
		served <- err
	}()
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err = Send(t.Context(), new(rdmanet.Dialer), l.Addr().String(), file)
	assert.EqualError(t, err, "receiver: a?[2J?from 10.0.0.1:1: b??")
	assert.NoError(t, <-served)
}

// TestSendToAnotherServer: what is not a receiver is called so, whatever it answers, and whether
// it reads the file or not.
func TestSendToAnotherServer(t *testing.T) {
	says := func(text string) func(c *rdmanet.Conn) error {
		return func(c *rdmanet.Conn) error {
			_, err := io.WriteString(c, text)
			err = errors.Join(err, c.CloseWrite())
			_, copyErr := io.Copy(io.Discard, c)
			return errors.Join(err, copyErr, c.Close())
		}
	}
	for name, serve := range map[string]func(c *rdmanet.Conn) error{
		"http":   says("HTTP/1.1 400 Bad Request\r\n\r\n"),
		"null":   says("null"),
		"object": says(`{"status":500}`),
		"array":  says("[1]"),
		"echo": func(c *rdmanet.Conn) error {
			_, _ = io.Copy(c, c)
			_ = c.Close() // both fail if the sender has gone before it had read everything
			return nil
		},
	} {
		for _, size := range []int{4, 32 << 20} { // that is more than is taken without being read
			t.Run(fmt.Sprint(name, ", ", size), func(t *testing.T) {
				l, err := rdmanet.Listen("rdma", testenv.Address())
				require.NoError(t, err)
				defer l.Close()
				served := make(chan error, 1)
				go func() {
					c, err := l.Accept()
					if err == nil {
						err = serve(c.(*rdmanet.Conn))
					}
					served <- err
				}()
				file := filepath.Join(t.TempDir(), "file")
				require.NoError(t, os.WriteFile(file, make([]byte, size), 0o600))
				_, err = Send(t.Context(), new(rdmanet.Dialer), l.Addr().String(), file)
				assert.ErrorContains(t, err, "is not fabricnet copy")
				assert.NoError(t, <-served)
			})
		}
	}
}

// TestSendWhatHasNoEnd: what is not a file is not opened, and hashing ends with the context.
func TestSendWhatHasNoEnd(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	require.NoError(t, exec.CommandContext(t.Context(), "mkfifo", fifo).Run())
	for _, file := range []string{fifo, "/dev/zero", t.TempDir()} {
		_, err := Send(t.Context(), new(rdmanet.Dialer), "127.0.0.1:1", file)
		assert.EqualError(t, err, "not a regular file", file)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, []byte("text"), 0o600))
	_, err := Send(ctx, new(rdmanet.Dialer), "127.0.0.1:1", file)
	assert.Equal(t, context.Canceled, err)
}
