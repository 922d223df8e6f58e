package filecopy

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/cmd/fabricnet/internal/connlimit"
)

// headerOf returns what a sender says about a file.
func headerOf(name, text string) header {
	sum := sha256.Sum256([]byte(text))
	return header{[]byte(name), int64(len(text)), hex.EncodeToString(sum[:])}
}

// TestModes: a file that is replaced keeps its mode, and nobody else reads the new bytes before. New
// files, and those in the place of a link, have the mode that the umask leaves.
func TestModes(t *testing.T) {
	const text = "new bytes"
	for name, before := range map[string]fs.FileMode{"secret": 0o600, "shared": 0o664, "script": 0o755, "fixed": 0o444, "new": 0, "link": 0} {
		t.Run(name, func(t *testing.T) {
			dir, c := receiver(t)
			path := filepath.Join(dir, name)
			other := filepath.Join(t.TempDir(), "other")
			f, err := os.OpenFile(other, os.O_CREATE, 0o644)
			require.NoError(t, err)
			require.NoError(t, f.Close())
			want := mode(t, other)
			switch {
			case name == "link":
				require.NoError(t, os.Chmod(other, 0o600))
				require.NoError(t, os.Symlink(other, path))
			case before != 0:
				want = before
				require.NoError(t, os.WriteFile(path, []byte("old"), 0o600))
				require.NoError(t, os.Chmod(path, before))
			}
			h := headerOf(name, text)
			require.NoError(t, json.NewEncoder(c).Encode(h))
			require.Eventually(t, func() bool {
				unfinished := temporary(t, dir)
				return unfinished != "" && mode(t, unfinished) == want
			}, 20*time.Second, time.Millisecond)
			_, err = io.WriteString(c, text)
			require.NoError(t, err)
			require.NoError(t, c.CloseWrite())
			require.NoError(t, readVerdict(c, h))
			assert.Equal(t, want, mode(t, path))
			got, err := os.ReadFile(path)
			require.NoError(t, err)
			assert.Equal(t, text, string(got))
		})
	}
}

func mode(t *testing.T, path string) fs.FileMode {
	t.Helper()
	info, err := os.Lstat(path)
	require.NoError(t, err)
	return info.Mode()
}

// temporary returns the path of the file that is being received, "" if there is none.
func temporary(t *testing.T, dir string) string {
	t.Helper()
	for _, name := range list(t, dir) {
		if strings.HasPrefix(name, ".copy-") {
			return filepath.Join(dir, name)
		}
	}
	return ""
}

// TestRefusals: the sender is told which flag of the receiver would let its file in, and with that flag
// it is let in.
func TestRefusals(t *testing.T) {
	const text = "some text"
	for name, tt := range map[string]struct {
		file    string
		closed  *Receiver
		refusal string
		open    *Receiver
	}{
		"dot file":  {".bashrc", &Receiver{}, `".bashrc" begins with a dot: the receiver takes such files with --dot-files only`, &Receiver{DotFiles: true}},
		"dots":      {"...", &Receiver{}, "--dot-files", &Receiver{DotFiles: true}},
		"too large": {"file", &Receiver{MaxSize: 8}, "9 bytes are too many: --max-size of the receiver allows 8", &Receiver{MaxSize: 9}},
	} {
		t.Run(name, func(t *testing.T) {
			h := headerOf(tt.file, text)
			dir, c := start(t, tt.closed)
			assert.ErrorContains(t, deliver(c, h, strings.NewReader(text)), tt.refusal)
			assert.Empty(t, list(t, dir))
			dir, c = start(t, tt.open)
			assert.NoError(t, deliver(c, h, strings.NewReader(text)))
			assert.Equal(t, []string{tt.file}, list(t, dir))
		})
	}
}

// TestIdleSender: a sender that does nothing is told so, and leaves nothing behind, wherever it stops.
func TestIdleSender(t *testing.T) {
	text, err := json.Marshal(headerOf("file", "some text"))
	require.NoError(t, err)
	for name, sent := range map[string]string{
		"no header": "", "half a header": string(text[:9]), "no file": string(text) + "\n", "half a file": string(text) + "\nsome",
		"no end": string(text) + "\nsome text",
	} {
		t.Run(name, func(t *testing.T) {
			dir, c := start(t, &Receiver{Idle: 50 * time.Millisecond})
			_, err := io.WriteString(c, sent)
			require.NoError(t, err)
			var v verdict
			require.NoError(t, json.NewDecoder(c).Decode(&v))
			assert.Contains(t, v.Error, "the sender has done nothing for 50ms: --idle-timeout of the receiver allows no more")
			assert.Empty(t, list(t, dir))
		})
	}
}

// TestManySenders: a sender that finds no place is told so. One that leaves makes room.
func TestManySenders(t *testing.T) {
	const text = "some text"
	dir, first := start(t, &Receiver{Senders: connlimit.Limiter{Max: 1}})
	h := headerOf("file", text)
	require.NoError(t, json.NewEncoder(first).Encode(h))
	require.Eventually(t, func() bool { return len(list(t, dir)) == 1 }, 20*time.Second, time.Millisecond, "it has its place")
	at := first.RemoteAddr().String()
	assert.ErrorContains(t, deliver(dial(t, at), headerOf("other", text), strings.NewReader(text)),
		"the receiver has as many senders as its --max-conns allows, 1: try again later")
	_, err := io.WriteString(first, text)
	require.NoError(t, err)
	require.NoError(t, first.CloseWrite())
	require.NoError(t, readVerdict(first, h))
	assert.NoError(t, deliver(dial(t, at), headerOf("other", text), strings.NewReader(text)))
	assert.Equal(t, []string{"file", "other"}, list(t, dir))
}

// lender is a reader that would rather lend memory, which a sender can change at any time.
type lender struct{ io.Reader }

func (lender) WriteTo(io.Writer) (int64, error) { return 0, errors.New("lent") }

// TestWhatIsHashed: what is hashed is the receiver's own copy, and that is what is stored.
func TestWhatIsHashed(t *testing.T) {
	text := strings.Repeat("text", 100_000)
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, fill(f, lender{strings.NewReader(text)}, headerOf("file", text)))
	got, err := os.ReadFile(f.Name())
	require.NoError(t, err)
	assert.True(t, bytes.Equal([]byte(text), got))
}
