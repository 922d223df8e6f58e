package load

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/seed202c38ff/fabricnet/bench/internal/workload"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// A carrier makes the conns of one transport. Its Close comes after that of the conns and the
// listener, and frees what they shared.
type carrier interface {
	listen(ctx context.Context) (net.Listener, error)
	dial(ctx context.Context, address string) (net.Conn, error)
	memory() memory // for the fabric, without what is resident
	Close() error
}

func newCarrier(j Job) (carrier, error) {
	switch j.Transport {
	case workload.TransportTCP:
		return &socket{network: "tcp", host: j.Host}, nil
	case workload.TransportUnix:
		return &socket{network: "unix"}, nil
	case workload.TransportRDMA, workload.TransportFresh:
		return newFabric(j), nil
	}
	return nil, fmt.Errorf("unknown transport %q", j.Transport)
}

// socket is TCP over loopback, or a Unix stream socket.
type socket struct {
	network string
	host    string
	dir     string // of the Unix socket
}

func (s *socket) listen(ctx context.Context) (net.Listener, error) {
	address := anyPort(s.host)
	if s.network == "unix" {
		dir, err := os.MkdirTemp("", "bench")
		if err != nil {
			return nil, err
		}
		s.dir = dir
		address = filepath.Join(dir, "socket")
	}
	return new(net.ListenConfig).Listen(ctx, s.network, address)
}

func (s *socket) dial(ctx context.Context, address string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, s.network, address)
}

func (s *socket) memory() memory { return memory{} }

func (s *socket) Close() error {
	if s.dir == "" {
		return nil
	}
	return os.RemoveAll(s.dir)
}

// backlog is how many conns may wait for Accept: what Linux gives TCP listeners.
const backlog = 4096

// fabric is rdmanet over one libfabric provider, without fallback.
type fabric struct {
	provider  string
	host      string
	transport *rdmanet.Transport
	config    rdmanet.ListenConfig
	dialer    rdmanet.Dialer
}

func newFabric(j Job) *fabric {
	t := new(rdmanet.Transport)
	only := []string{j.Provider}
	return &fabric{
		provider:  j.Provider,
		host:      j.Host,
		transport: t,
		config:    rdmanet.ListenConfig{Providers: only, Transport: t, Backlog: backlog},
		dialer:    rdmanet.Dialer{Providers: only, Transport: t, DisableReuse: j.Transport == workload.TransportFresh},
	}
}

func (f *fabric) listen(ctx context.Context) (net.Listener, error) {
	return f.config.Listen(ctx, "rdma", anyPort(f.host))
}

func (f *fabric) dial(ctx context.Context, address string) (net.Conn, error) {
	c, err := f.dialer.DialContext(ctx, "rdma", address)
	if err != nil {
		return nil, err
	}
	// A figure must never be for anything other than what its row says.
	conn, ok := c.(*rdmanet.Conn)
	if !ok {
		return nil, errors.Join(errors.New("the conn does not run over the fabric"), c.Close())
	}
	switch info := conn.Info(); {
	case info.Provider != f.provider:
		return nil, errors.Join(fmt.Errorf("the conn runs over provider %q", info.Provider), c.Close())
	case info.Reused && f.dialer.DisableReuse:
		return nil, errors.Join(errors.New("the conn had no control connection of its own"), c.Close())
	}
	return c, nil
}

// memory counts as registered what is in use, without what conns were only promised as receive
// windows. If that cannot be told apart, it counts, too.
func (f *fabric) memory() memory {
	s := f.transport.Stats()
	m := memory{registered: s.Memory.Used, used: s.Memory.Used, mapped: s.Memory.Mapped}
	if promised := int64(s.Conns) * rdmanet.DefaultReceiveWindow; promised <= s.Memory.Used {
		m.registered -= promised
	}
	return m
}

func (f *fabric) Close() error { return f.transport.Close() }

// candidates are the providers that rdmanet chooses from by itself.
var candidates = []string{"shm", "cxi", "efa", "psm3", "opx", "verbs;ofi_rxm", "tcp", "net", "tcp;ofi_rxm"}

// Offered returns the candidates that this machine offers at host, and says why it does not offer
// the others.
func Offered(ctx context.Context, host string) (have []string, absent string, err error) {
	t := new(rdmanet.Transport)
	have, reasons := try(candidates, func(provider string) error {
		config := rdmanet.ListenConfig{Providers: []string{provider}, Transport: t}
		l, err := config.Listen(ctx, "rdma", anyPort(host))
		if err != nil {
			return err
		}
		return l.Close()
	})
	return have, notMeasured(reasons), t.Close()
}

// try separates the providers that listen works with from the others, for which it returns the
// reasons.
func try(providers []string, listen func(provider string) error) (have []string, absent []absence) {
	for _, provider := range providers {
		err := listen(provider)
		if err == nil {
			have = append(have, provider)
			continue
		}
		if op := (*net.OpError)(nil); errors.As(err, &op) {
			err = op.Err // the address means nothing here
		}
		if errors.Is(err, rdmanet.ErrUnsupported) { // so are all others
			return nil, []absence{{"rdma", err}}
		}
		absent = append(absent, absence{"rdma/" + provider, err})
	}
	return have, absent
}

// absence is a transport that cannot be measured, and why.
type absence struct {
	transport string
	reason    error
}

// notMeasured says what is absent. Hardware that the machine does not have is only named. For
// everything else, such as a /dev/shm that is too small, it gives the reason.
func notMeasured(absent []absence) string {
	var lines, names []string
	for _, a := range absent {
		if errors.Is(a.reason, rdmanet.ErrProviderUnavailable) && a.transport != "rdma/shm" {
			names = append(names, a.transport)
			continue
		}
		lines = append(lines, fmt.Sprintf("not measured: %s: %v", a.transport, a.reason))
	}
	if len(names) > 0 {
		lines = append(lines, "not on this machine: "+strings.Join(names, ", "))
	}
	return strings.Join(lines, "\n")
}

// anyPort returns an address at host with a port of the system's choice.
func anyPort(host string) string { return net.JoinHostPort(host, "0") }
