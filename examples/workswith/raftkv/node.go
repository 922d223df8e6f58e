package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
)

const (
	dialTimeout  = 5 * time.Second
	applyTimeout = 5 * time.Second
	conns        = 3 // that are kept to each other node
	snapshots    = 2 // that are kept
)

type config struct {
	address   string   // of this node
	cluster   []string // addresses of all nodes
	dir       string
	network   string
	heartbeat time.Duration
}

// node is one member of the cluster.
type node struct {
	raft  *raft.Raft
	log   *raftboltdb.BoltStore
	store *store
}

// newNode starts a member, from what is in its folder if there is anything.
func newNode(c config) (n *node, err error) {
	if !slices.Contains(c.cluster, c.address) || c.dir == "" {
		return nil, errors.New("-cluster, -dir and a -node of the cluster are needed")
	}
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return nil, err
	}
	n = &node{store: newStore()}
	n.log, err = raftboltdb.New(raftboltdb.Options{Path: filepath.Join(c.dir, "log")})
	if err != nil {
		return nil, err
	}
	if err := n.join(c); err != nil {
		return nil, errors.Join(err, n.log.Close())
	}
	return n, nil
}

func (n *node) join(c config) error {
	logger := hclog.New(&hclog.LoggerOptions{Name: c.address, Level: hclog.Warn})
	snaps, err := raft.NewFileSnapshotStoreWithLogger(c.dir, snapshots, logger)
	if err != nil {
		return err
	}
	layer, err := newStreamLayer(c.network, c.address)
	if err != nil {
		return err
	}
	transport := raft.NewNetworkTransportWithLogger(layer, conns, dialTimeout, logger)
	settings := raft.DefaultConfig()
	settings.LocalID = raft.ServerID(c.address)
	settings.Logger = logger
	settings.HeartbeatTimeout, settings.ElectionTimeout, settings.LeaderLeaseTimeout = c.heartbeat, c.heartbeat, c.heartbeat/2
	n.raft, err = raft.NewRaft(settings, n.store, n.log, n.log, snaps, transport)
	if err != nil {
		return errors.Join(err, transport.Close())
	}
	// Each node may say who the members are, as long as all say the same. One that has been
	// a member knows.
	var members raft.Configuration
	for _, address := range c.cluster {
		members.Servers = append(members.Servers, raft.Server{ID: raft.ServerID(address), Address: raft.ServerAddress(address)})
	}
	if err := n.raft.BootstrapCluster(members).Error(); err != nil && !errors.Is(err, raft.ErrCantBootstrap) {
		return errors.Join(err, n.raft.Shutdown().Error(), transport.Close())
	}
	return nil
}

// put stores a value, and returns once most of the nodes have it. It fails with
// raft.ErrNotLeader at other nodes than the leader.
func (n *node) put(key string, value []byte) error {
	entry, err := encode(key, value)
	if err != nil {
		return err
	}
	return n.raft.Apply(entry, applyTimeout).Error()
}

// leader returns where the leader serves HTTP; "" means that there is none, as far as this node
// knows.
func (n *node) leader() (string, error) {
	address, _ := n.raft.LeaderWithID()
	if address == "" {
		return "", nil
	}
	return httpAddress(string(address))
}

func (n *node) close() error {
	if err := n.raft.Shutdown().Error(); err != nil {
		return fmt.Errorf("raft: %w", err)
	}
	return n.log.Close()
}
