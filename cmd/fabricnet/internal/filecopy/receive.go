package filecopy

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed202c38ff/fabricnet/cmd/fabricnet/internal/connlimit"
	"github.com/seed202c38ff/fabricnet/internal/printable"
)

// Receiver takes files from senders. Its fields must not be changed while it serves.
type Receiver struct {
	// Root is where files go, and nowhere else.
	Root *os.Root
	// Report gets a line for each file and each failure. It may be called concurrently.
	Report func(line string)

	Senders  connlimit.Limiter // those that are served at once
	MaxSize  int64             // of a file, in bytes; 0: no bound
	Idle     time.Duration     // how long a sender may do nothing; 0: forever
	DotFiles bool              // take files whose names begin with a dot, too

	hush connlimit.Hush[error]
}

// endTime is how long senders may go on once Serve is to end.
const endTime = 10 * time.Second

// spare is how many conns there may be beside the places of Senders, for verdicts. One host can have
// half of them. A sender leaves its place before it gets its verdict, so that it can come back with
// its next file at once.
const spare = 8

// refusalTime is how long a sender without a place may take to be told so.
const refusalTime = time.Second

// Serve serves senders until ctx ends, and those that are there then for 10 seconds more.
func (r *Receiver) Serve(ctx context.Context, l net.Listener) error {
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	conns := connlimit.Limiter{Max: more(r.Senders.Max, spare), MaxPerHost: more(r.Senders.MaxPerHost, spare/2)}
	var senders sync.WaitGroup
	defer senders.Wait()
	for {
		c, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		leave, err := conns.Enter(c.RemoteAddr())
		if err != nil {
			connlimit.Reset(c)
			_ = r.refusal(c, err)
			continue
		}
		senders.Go(func() {
			defer leave()
			defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Now().Add(endTime)) })()
			r.serve(c)
		})
	}
}

// more adds to a bound, if there is one.
func more(bound, n int) int {
	if bound == 0 {
		return 0
	}
	return bound + n
}

// serve takes one file if there is a place for its sender, and tells the sender how that went.
func (r *Receiver) serve(c net.Conn) {
	leave, err := r.Senders.Enter(c.RemoteAddr())
	if err != nil {
		_ = c.SetWriteDeadline(time.Now().Add(refusalTime))
		_ = tell(c, "", r.refusal(c, err))
		_ = c.Close()
		return
	}
	p := &patient{Conn: c, limit: r.Idle}
	h, err := r.store(p)
	leave()
	r.report(c, string(h.Name), errors.Join(err, tell(p, h.SHA256, err), c.Close()))
}

// tell sends the verdict.
func tell(c io.Writer, stored string, err error) error {
	v := verdict{Stored: stored}
	if err != nil {
		v = verdict{Error: printable.Line(err.Error())}
	}
	return json.NewEncoder(c).Encode(v)
}

func (r *Receiver) report(c net.Conn, name string, err error) {
	text := printable.Name(name)
	if err != nil {
		text = printable.Line(err.Error()) // of which the sender may have chosen some
	}
	r.Report(fmt.Sprintf("from %s: %s", c.RemoteAddr(), text))
}

// refusal reports that there is no place for a sender, but not each time, and returns the reason.
func (r *Receiver) refusal(c net.Conn, why error) error {
	err := fmt.Errorf("the receiver has as many senders as its --max-conns allows, %d: try again later", r.Senders.Max)
	if errors.Is(why, connlimit.ErrHost) {
		err = fmt.Errorf("the receiver has as many senders of one host as its --max-conns-per-host allows, %d: try again later", r.Senders.MaxPerHost)
	}
	if r.hush.Over(why) {
		r.report(c, "", err)
	}
	return err
}

// patient is a sender's conn, on which a call takes no longer than limit, if that is not 0. After one
// that did, reading or writing fails for good.
type patient struct {
	net.Conn
	limit time.Duration
	idle  atomic.Bool // the limit was reached
}

func (c *patient) Read(b []byte) (int, error) { return c.call(c.Conn.Read, c.SetReadDeadline, b) }

func (c *patient) Write(b []byte) (int, error) { return c.call(c.Conn.Write, c.SetWriteDeadline, b) }

func (c *patient) call(op func([]byte) (int, error), setDeadline func(time.Time) error, b []byte) (int, error) {
	if c.limit > 0 {
		defer time.AfterFunc(c.limit, func() {
			c.idle.Store(true)
			_ = setDeadline(past)
		}).Stop()
	}
	n, err := op(b)
	if errors.Is(err, os.ErrDeadlineExceeded) && c.idle.Load() {
		err = fmt.Errorf("the sender has done nothing for %v: --idle-timeout of the receiver allows no more", c.limit)
	}
	return n, err
}

// store reads one file. It writes to a temporary name, so that nobody sees half a file under the
// real one. Root keeps the file within the directory, symbolic links or not.
func (r *Receiver) store(c io.Reader) (h header, err error) {
	in := bufio.NewReaderSize(c, maxHeader)
	line, err := in.ReadSlice('\n')
	if err != nil {
		return h, fmt.Errorf("header: %w", err)
	}
	if err := json.Unmarshal(line, &h); err != nil {
		return h, fmt.Errorf("header: %w", err)
	}
	if err := r.check(h); err != nil {
		return h, err
	}
	temporary := ".copy-" + rand.Text()
	f, err := r.create(temporary, string(h.Name))
	if err != nil {
		return h, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.Root.Remove(temporary))
		}
	}()
	if err := errors.Join(fill(f, in, h), f.Close()); err != nil {
		return h, err
	}
	return h, r.Root.Rename(temporary, string(h.Name))
}

// check refuses files that do not belong into the directory.
func (r *Receiver) check(h header) error {
	name := string(h.Name)
	switch {
	case name != filepath.Base(name) || !filepath.IsLocal(name) || name == ".":
		return fmt.Errorf("%q is not the name of a file in this directory", name)
	case name[0] == '.' && !r.DotFiles:
		return fmt.Errorf("%q begins with a dot: the receiver takes such files with --dot-files only", name)
	case r.MaxSize > 0 && h.Size > r.MaxSize:
		return fmt.Errorf("%d bytes are too many: --max-size of the receiver allows %d", h.Size, r.MaxSize)
	}
	return nil
}

// create makes a temporary file, of the mode of the file that it is to replace. That is its mode from
// the beginning, so that nobody who could not read the old bytes reads the new ones meanwhile.
func (r *Receiver) create(temporary, name string) (*os.File, error) {
	old, err := r.Root.Lstat(name)
	replaces := err == nil && old.Mode().IsRegular()
	perm := fs.FileMode(0o644)
	if replaces {
		perm = old.Mode().Perm()
	}
	f, err := r.Root.OpenFile(temporary, os.O_CREATE|os.O_EXCL|os.O_WRONLY, perm)
	if err != nil || !replaces {
		return f, err
	}
	if err := f.Chmod(perm); err != nil { // the umask does not count for it
		return nil, errors.Join(err, f.Close(), r.Root.Remove(temporary))
	}
	return f, nil
}

// fill writes what arrives to f and compares it with the header. What is hashed and what is written is
// one copy, since a hostile sender can change what it has sent until it is read.
func fill(f *os.File, r io.Reader, h header) error {
	w := &checked{f: f, hash: sha256.New(), left: h.Size}
	if _, err := io.CopyBuffer(w, struct{ io.Reader }{r}, make([]byte, pieceSize)); err != nil {
		return err
	}
	if w.left > 0 {
		return fmt.Errorf("%d of %d bytes are missing", w.left, h.Size)
	}
	if got := hex.EncodeToString(w.hash.Sum(nil)); got != h.SHA256 {
		return fmt.Errorf("SHA-256 is %s, and should be %s", got, h.SHA256)
	}
	return f.Sync()
}

// pieceSize is how much is written at a time, in bytes.
const pieceSize = 64 << 10

// checked writes to a file and hashes what it writes, which is no more than was announced.
type checked struct {
	f    *os.File
	hash hash.Hash
	left int64
}

// Write fails when there is more than was announced.
func (w *checked) Write(b []byte) (int, error) {
	if int64(len(b)) > w.left {
		return 0, errors.New("more bytes than the header says")
	}
	w.left -= int64(len(b))
	w.hash.Write(b)
	return w.f.Write(b)
}
