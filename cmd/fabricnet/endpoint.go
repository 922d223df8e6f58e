package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"

	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// endpoint is where conns come from or go to. It is a flag.Value.
type endpoint struct{ network, address string }

// String returns what Set takes.
func (e *endpoint) String() string {
	if e.network == "" {
		return ""
	}
	return e.network + "://" + e.address
}

// Set takes tcp://host:port, unix://path or rdma://host:port.
func (e *endpoint) Set(text string) error {
	network, address, ok := strings.Cut(text, "://")
	if !ok {
		return errors.New("it begins with tcp://, unix:// or rdma://")
	}
	switch network {
	case "tcp", "rdma":
		if _, _, err := net.SplitHostPort(address); err != nil {
			return fmt.Errorf("want %s://host:port: %w", network, err)
		}
	case "unix":
		if address == "" {
			return errors.New("want unix://path")
		}
	default:
		return fmt.Errorf("%q is none of tcp, unix and rdma", network)
	}
	e.network, e.address = network, address
	return nil
}

// listen listens there, over a fabric as lc says. The file of a Unix socket is removed
// when the listener is closed.
func (e *endpoint) listen(ctx context.Context, lc *rdmanet.ListenConfig) (net.Listener, error) {
	switch e.network {
	case "rdma":
		return lc.Listen(ctx, e.network, e.address)
	case "unix":
		if err := removeStale(ctx, e.address); err != nil {
			return nil, err
		}
	}
	return new(net.ListenConfig).Listen(ctx, e.network, e.address)
}

// removeStale removes the socket of a process that did not get to remove it itself: one that nobody
// listens on.
func removeStale(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	if err != nil || info.Mode().Type() != fs.ModeSocket {
		return nil // the listen call reports what is wrong
	}
	c, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err == nil {
		return c.Close()
	}
	if errors.Is(err, syscall.ECONNREFUSED) {
		return os.Remove(path)
	}
	return err
}

// dial connects to it, over a fabric as d says.
func (e *endpoint) dial(ctx context.Context, d *rdmanet.Dialer) (conn, error) {
	dial := new(net.Dialer).DialContext
	if e.network == "rdma" {
		dial = d.DialContext
	}
	c, err := dial(ctx, e.network, e.address)
	if err != nil {
		return nil, err
	}
	return c.(conn), nil
}

// literal resolves the host name in an address to listen at, so that the address that was checked
// is also the one that is used. Like package net, it takes the first IPv4 address if there is one.
func literal(ctx context.Context, address string) (string, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil || host == "" {
		return address, err
	}
	list, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return "", err
	}
	chosen := list[0].Unmap()
	for _, a := range list {
		if !chosen.Is4() && a.Unmap().Is4() {
			chosen = a.Unmap()
		}
	}
	return net.JoinHostPort(chosen.String(), port), nil
}

// loopback reports whether the host of an address is a literal loopback address. It is false for
// names, and for an empty host, which stands for all addresses.
func loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.Unmap().IsLoopback()
}

// own reports whether an address to dial is on this host. It resolves no names.
func own(address string) bool {
	host, _, err := net.SplitHostPort(address)
	return err == nil && (host == "" || host == "localhost") || loopback(address)
}
