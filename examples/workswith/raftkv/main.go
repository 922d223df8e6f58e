// Raftkv is a key-value store of several processes, on hashicorp/raft: what was stored survives
// the end of any minority of them. It is an example of an existing engine that moves to a fabric;
// network.go has all that differs from TCP.
//
// Three nodes, each in a terminal of its own, from the top of the repository:
//
//	C=127.0.0.1:7010,127.0.0.1:7020,127.0.0.1:7030
//	go run ./examples/workswith/raftkv -cluster $C -node 127.0.0.1:7010 -dir /tmp/raftkv1
//	go run ./examples/workswith/raftkv -cluster $C -node 127.0.0.1:7020 -dir /tmp/raftkv2
//	go run ./examples/workswith/raftkv -cluster $C -node 127.0.0.1:7030 -dir /tmp/raftkv3
//
// The nodes serve HTTP at the next port, and take clients by TCP there, too:
//
//	curl --location --upload-file /etc/hostname http://127.0.0.1:7011/kv/name
//	curl http://127.0.0.1:7021/kv/name
//	curl http://127.0.0.1:7031/leader
//
// With -network tcp, no fabric is used.
package main

import (
	"context"
	"errors"
	"flag"
	"log"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

func main() {
	log.SetFlags(log.Ltime)
	c := config{}
	cluster := flag.String("cluster", "", "`addresses` of all nodes, with commas between them")
	flag.StringVar(&c.address, "node", "", "this node's `address`, which is one of them; HTTP is served at the next port")
	flag.StringVar(&c.dir, "dir", "", "the `folder` for this node's data")
	flag.StringVar(&c.network, "network", "rdma", "rdma or tcp")
	flag.DurationVar(&c.heartbeat, "heartbeat", time.Second, "how long the leader may be silent before others stand for election")
	flag.Parse()
	c.cluster = strings.Split(*cluster, ",")
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, c); err != nil {
		log.Fatal(err)
	}
}

// run runs a node until ctx ends.
func run(ctx context.Context, c config) (err error) {
	n, err := newNode(c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	address, err := httpAddress(c.address)
	if err != nil {
		return err
	}
	l, err := listenForClients(c.network, address)
	if err != nil {
		return err
	}
	log.Printf("node %s of %s, over %s; http://%s", c.address, c.cluster, c.network, address)
	server := &http.Server{Handler: n.handler()}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(l) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
		return server.Close()
	}
}
