// Fabricnet-proxy connects what comes in on one side to the other: TCP or Unix
// sockets to a fabric, a fabric to sockets, or any of them to its like. Programs that
// know nothing of fabrics get across one between two of it. End of stream passes in
// each direction by itself, and an error on one side ends the other.
//
// In one command, as two processes:
//
//	go run ./examples/fabricnet-proxy
//
// In two terminals, or on two hosts of one fabric, for a web server on port 80:
//
//	go run ./examples/fabricnet-proxy -listen rdma://:9000 -to tcp://localhost:80
//	go run ./examples/fabricnet-proxy -listen tcp://localhost:8080 -to rdma://localhost:9000
//	curl http://localhost:8080/
//
// SIGINT and SIGTERM stop it: it takes no more conns, waits -grace for those that it
// has, and cuts off the rest. A second signal ends it at once.
//
// Bytes on a fabric are clear text. RDMANET_PROVIDERS=tcp;ofi_rxm in the environment
// chooses the provider.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	log.SetFlags(0)
	p := &proxy{log: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	var from endpoint
	flag.Var(&from, "listen", "take conns at this `endpoint`: tcp://host:port, unix://path or rdma://host:port")
	flag.Var(&p.to, "to", "connect them to this `endpoint`, of the same form")
	flag.DurationVar(&p.dialTimeout, "dial-timeout", 10*time.Second, "how long connecting may take")
	flag.DurationVar(&p.grace, "grace", 10*time.Second, "how long conns may go on after SIGINT or SIGTERM")
	flag.Parse()

	var err error
	switch {
	case flag.NFlag() == 0 && flag.NArg() == 0:
		err = both()
	case flag.NArg() > 0:
		err = fmt.Errorf("%q belongs to no flag; see -help", flag.Arg(0))
	case from.network == "":
		err = fmt.Errorf("-listen is missing: say where conns come from, as -listen tcp://:8080 does")
	case p.to.network == "":
		err = fmt.Errorf("-to is missing: say where conns go, as -to rdma://host:9000 does")
	default:
		err = run(p, from)
	}
	if err != nil {
		log.Fatal("fabricnet-proxy: ", err)
	}
}

// run serves until a signal comes.
func run(p *proxy, from endpoint) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // the second signal finds the default again
	l, err := from.listen(ctx)
	if err != nil {
		return err
	}
	p.serve(ctx, l)
	return nil
}
