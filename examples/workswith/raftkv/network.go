package main

import (
	"context"
	"net"
	"strconv"
	"time"

	"github.com/hashicorp/raft"

	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// streamLayer is raft.StreamLayer: how nodes reach each other.
type streamLayer struct {
	net.Listener
	network string
}

// newStreamLayer listens for other nodes. raft.NewTCPTransport does the same over TCP.
func newStreamLayer(network, address string) (*streamLayer, error) {
	listen := net.Listen
	if network == "rdma" {
		listen = rdmanet.Listen
	}
	l, err := listen(network, address)
	if err != nil {
		return nil, err
	}
	return &streamLayer{l, network}, nil
}

func (s *streamLayer) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	if s.network == "rdma" {
		return rdmanet.DialTimeout(s.network, string(address), timeout)
	}
	return net.DialTimeout(s.network, string(address), timeout)
}

// listenForClients listens for HTTP. Clients by plain TCP, such as curl, are served in any case.
func listenForClients(network, address string) (net.Listener, error) {
	if network == "rdma" {
		config := rdmanet.ListenConfig{AcceptTCP: true}
		return config.Listen(context.Background(), network, address)
	}
	return net.Listen(network, address)
}

// httpAddress returns where a node serves HTTP.
func httpAddress(node string) (string, error) {
	host, port, err := net.SplitHostPort(node)
	if err != nil {
		return "", err
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		return "", err
	}
	return net.JoinHostPort(host, strconv.Itoa(n+1)), nil
}
