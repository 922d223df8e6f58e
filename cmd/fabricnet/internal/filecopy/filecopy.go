// Package filecopy copies files from one process to another over a fabric: io.Copy through the
// conn's ReadFrom, a hash, and a receiver that trusts no sender.
package filecopy

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/seed202c38ff/fabricnet/internal/printable"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// Each transfer has a conn of its own. The sender sends a header in one line, the bytes of the
// file, and the end of the stream. The receiver answers with a verdict.
type (
	header struct {
		Name   []byte `json:"name_base64"` // without a directory; strings are UTF-8 in JSON, which names need not be
		Size   int64  `json:"size"`        // in bytes
		SHA256 string `json:"sha256"`
	}
	verdict struct {
		Error  string `json:"error,omitempty"`
		Stored string `json:"stored,omitempty"` // the SHA-256 of the file, once it is there
	}
)

// maxHeader bounds the header's line, in bytes.
const maxHeader = 4 << 10

// Sent says what Send has done.
type Sent struct {
	Name     string
	Size     int64 // in bytes
	SHA256   string
	Provider string // libfabric's name
	Took     time.Duration
}

// String returns a line for people.
func (s Sent) String() string {
	return fmt.Sprintf("%s: %d bytes in %v, %.2f GB/s, by %s, SHA-256 %s",
		printable.Name(s.Name), s.Size, s.Took.Round(time.Microsecond), float64(s.Size)/1e9/s.Took.Seconds(), s.Provider, s.SHA256)
}

// Send sends a file to a receiver, and waits until it is there.
func Send(ctx context.Context, d *rdmanet.Dialer, address, file string) (sent Sent, err error) {
	if info, err := os.Stat(file); err == nil && !info.Mode().IsRegular() {
		return sent, errors.New("not a regular file") // Open might wait for ever, or Read have no end
	}
	f, err := os.Open(file)
	if err != nil {
		return sent, err
	}
	defer f.Close()
	h := header{Name: []byte(filepath.Base(file))}
	// The hash takes a separate pass, so that io.Copy gets the file itself, which the conn reads
	// straight into registered memory.
	if h.SHA256, h.Size, err = sum(ctx, f); err != nil {
		return sent, err
	}
	nc, err := d.DialContext(ctx, "rdma", address)
	if err != nil {
		return sent, err
	}
	c := nc.(*rdmanet.Conn)
	defer func() { err = errors.Join(err, c.Close()) }()
	defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(past) })()
	start := time.Now()
	if err := deliver(c, h, f); err != nil {
		return sent, errors.Join(ctx.Err(), err)
	}
	return Sent{string(h.Name), h.Size, h.SHA256, c.Info().Provider, time.Since(start)}, nil
}

// past is a deadline that ends all reading and writing.
var past = time.Unix(1, 0)

// sum hashes a file and goes back to its beginning. It ends when ctx does.
func sum(ctx context.Context, f *os.File) (hexSum string, size int64, err error) {
	h := sha256.New()
	if size, err = io.Copy(h, reader(func(b []byte) (int, error) {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		return f.Read(b)
	})); err != nil {
		return "", 0, err
	}
	_, err = f.Seek(0, io.SeekStart)
	return hex.EncodeToString(h.Sum(nil)), size, err
}

// reader makes an io.Reader of a function.
type reader func(b []byte) (int, error)

func (r reader) Read(b []byte) (int, error) { return r(b) }

// deliver sends the header and the bytes of r, and returns the receiver's verdict on them.
func deliver(c *rdmanet.Conn, h header, r io.Reader) error {
	// A receiver that does not want the file says so, and may read no more: sending ends then.
	// Its reason is more helpful than our broken pipe.
	judged := make(chan error, 1)
	go func() {
		err := readVerdict(c, h)
		if err != nil {
			_ = c.SetWriteDeadline(past)
		}
		judged <- err
	}()
	sendErr := json.NewEncoder(c).Encode(h)
	if sendErr == nil {
		_, sendErr = io.Copy(c, r)
	}
	if sendErr == nil {
		sendErr = c.CloseWrite()
	}
	err := <-judged
	if err == nil || errors.Is(err, errNoVerdict) && !errors.Is(sendErr, os.ErrDeadlineExceeded) {
		return errors.Join(sendErr, err)
	}
	return err
}

// errNoVerdict: the conn failed or ended without one.
var errNoVerdict = errors.New("no verdict")

// readVerdict returns nil if the receiver says that it has the file with that header.
func readVerdict(c *rdmanet.Conn, h header) error {
	var v verdict
	err := json.NewDecoder(io.LimitReader(c, maxHeader)).Decode(&v)
	var syntax *json.SyntaxError
	var other *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax) || errors.As(err, &other) || err == nil && v.Error == "" && v.Stored != h.SHA256:
		return fmt.Errorf("what listens at %v is not fabricnet copy: its answer is no verdict", c.RemoteAddr())
	case err != nil:
		return fmt.Errorf("%w: %w", errNoVerdict, err)
	case v.Error != "":
		return fmt.Errorf("receiver: %s", printable.Text(v.Error))
	}
	return nil
}
