package load

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"time"

	"github.com/seed202c38ff/fabricnet/bench/internal/workload"
	"github.com/seed202c38ff/fabricnet/internal/printable"
)

// With two machines, the client's bench makes the server's bench start its processes and ask them.
// Each measurement has a TCP connection. Its first line is a request. After that, the lines that a
// process and its parent exchange (child.go) are passed on.

// controlVersion changes whenever the protocol between the two does.
const controlVersion = 1

// requestTime is how long a request or its answer may take.
const requestTime = 30 * time.Second

// A request asks for the server of a job or, without a job, for an offer.
type request struct {
	Version int
	Job     *Job `json:",omitempty"`
}

// An Offer says what a machine can measure, to a client that it sees at an
// address.
type Offer struct {
	Machine, Commit string
	Providers       []string
	Client          string
	SameHost        bool
}

// Common separates the providers that both machines have from those that only the client's machine
// has. Memory can be shared on one host only.
func (o Offer) Common(have []string) (both, missing []string) {
	for _, provider := range have {
		if slices.Contains(o.Providers, provider) && (provider != workload.Shm.Provider || o.SameHost) {
			both = append(both, provider)
		} else {
			missing = append(missing, provider)
		}
	}
	return both, missing
}

// dialServer sends a request to the server's bench. The conn is closed when ctx ends.
func dialServer(ctx context.Context, address string, r request) (net.Conn, error) {
	d := net.Dialer{Timeout: requestTime}
	c, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("the server's bench (-s): %w", err)
	}
	context.AfterFunc(ctx, func() { c.Close() })
	r.Version = controlVersion
	return c, json.NewEncoder(c).Encode(r)
}

// AskOffer asks the server's bench what it can measure.
func AskOffer(ctx context.Context, address string) (Offer, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	c, err := dialServer(ctx, address, request{})
	if err != nil {
		return Offer{}, err
	}
	defer c.Close()
	var r reply
	if err := json.NewDecoder(c).Decode(&r); err != nil {
		return Offer{}, fmt.Errorf("%s does not answer as bench -s does: %w", address, errors.Join(err, ctx.Err()))
	}
	if r.Error != "" || r.Offer == nil {
		return Offer{}, fmt.Errorf("the server's bench at %s: %s", address, printable.Lines(r.Error))
	}
	o := *r.Offer
	local, _, err := net.SplitHostPort(c.LocalAddr().String())
	if err != nil {
		return Offer{}, err
	}
	remote, _, err := net.SplitHostPort(c.RemoteAddr().String())
	o.Machine, o.Commit = printable.Line(o.Machine), printable.Line(o.Commit)
	o.Client, o.SameHost = local, local == remote
	return o, err
}

// startRemote makes the server's bench start the server of a job.
func startRemote(ctx context.Context, address string, j Job) (*process, error) {
	c, err := dialServer(ctx, address, request{Job: &j})
	if err != nil {
		return nil, err
	}
	return &process{
		role: "server at " + address, in: halfConn{c}, out: json.NewDecoder(bufio.NewReader(c)), wait: c.Close,
	}, nil
}

// halfConn is a conn whose Close ends only the direction that is written.
type halfConn struct{ net.Conn }

func (c halfConn) Close() error { return c.Conn.(*net.TCPConn).CloseWrite() }

// A Server serves measurements of clients on other machines.
type Server struct {
	Host            string // where the processes listen, as does the server itself
	Port            int
	Profile         string // the directory for profiles; no profiles if it is empty
	Machine, Commit string // what it is measured on, and by
	program         string
}

// Serve serves one client after the other, so that none disturbs another's figures, until ctx ends.
func (s Server) Serve(ctx context.Context) (err error) {
	if s.program, err = os.Executable(); err != nil {
		return err
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(s.Host, fmt.Sprint(s.Port)))
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { l.Close() })()
	fmt.Printf("serving measurements at %s\n", l.Addr())
	for {
		c, err := l.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return errors.Join(err, l.Close())
		}
		s.handle(ctx, c)
	}
}

// handle serves one request. It tells the client what has failed.
func (s Server) handle(ctx context.Context, c net.Conn) {
	defer c.Close()
	defer context.AfterFunc(ctx, func() { _ = c.Close() })() // an interrupt ends waits for the client, too
	_ = c.SetDeadline(time.Now().Add(requestTime))           // fails only once c is closed
	in, out := bufio.NewScanner(c), json.NewEncoder(c)
	j, err := readRequest(in)
	switch {
	case err != nil:
	case j == nil:
		err = s.offer(ctx, out)
	default:
		_ = c.SetDeadline(time.Now().Add(j.limit()))
		err = s.relay(ctx, *j, in, out)
	}
	if err != nil {
		_ = out.Encode(reply{Error: err.Error()}) // the client may have gone
	}
}

func readRequest(in *bufio.Scanner) (*Job, error) {
	if !in.Scan() {
		return nil, errors.Join(in.Err(), io.ErrUnexpectedEOF)
	}
	var r request
	if err := json.Unmarshal(in.Bytes(), &r); err != nil {
		return nil, fmt.Errorf("the request is not readable: %w", err)
	}
	if r.Version != controlVersion {
		return nil, fmt.Errorf("the two programs differ: the request has version %d, this is %d", r.Version, controlVersion)
	}
	return r.Job, nil
}

func (s Server) offer(ctx context.Context, out *json.Encoder) error {
	providers, _, err := Offered(ctx, s.Host)
	if err != nil {
		return err
	}
	return out.Encode(reply{Offer: &Offer{Machine: s.Machine, Commit: s.Commit, Providers: providers}})
}

// relay starts the server of a job, and passes on the client's lines and the server's replies until
// one of the two ends.
func (s Server) relay(ctx context.Context, j Job, in *bufio.Scanner, out *json.Encoder) (err error) {
	j.Host, j.Profile = s.Host, s.Profile // never the client's
	if err := j.check(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, j.limit())
	defer cancel()
	server, err := start(ctx, s.program, roleServer, j)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.stop()) }()
	r, err := server.receive()
	for ; err == nil; r, err = server.ask(in.Text()) {
		if err := out.Encode(r); err != nil || !in.Scan() {
			return errors.Join(err, in.Err())
		}
	}
	return err
}
