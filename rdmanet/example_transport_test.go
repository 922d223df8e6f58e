package rdmanet_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// A Transport has limits of its own. When it is closed, no goroutine, file or shared memory of
// it is left.
func ExampleTransport() {
	transport := &rdmanet.Transport{
		MemoryLimit:   64 << 20,        // bytes, for all of its conns together
		ReceiveWindow: 32 << 10,        // bytes of small data that a conn holds unread
		DeadAfter:     5 * time.Second, // a peer that is silent for longer is gone
	}
	config := rdmanet.ListenConfig{Transport: transport}
	l, err := config.Listen(context.Background(), "rdma", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	dialer := rdmanet.Dialer{Transport: transport}
	c, err := dialer.Dial("rdma", l.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	if err := transport.Close(); err != nil {
		log.Fatal(err)
	}
	_, err = c.Write([]byte("too late"))
	fmt.Println("conns fail:", err != nil)
	c.Close()
	_, err = l.Accept()
	fmt.Println("listeners are closed:", errors.Is(err, net.ErrClosed))
	_, err = dialer.Dial("rdma", l.Addr().String())
	fmt.Println("and dials end:", errors.Is(err, net.ErrClosed))
	fmt.Println("memory in use:", transport.Stats().Memory.Used)
	// Output:
	// conns fail: true
	// listeners are closed: true
	// and dials end: true
	// memory in use: 0
}

// Further conns between two processes reuse the handshake of the first one.
func ExampleTransport_Stats() {
	transport := new(rdmanet.Transport)
	defer transport.Close()
	providers := []string{"tcp;ofi_rxm"}
	config := rdmanet.ListenConfig{Transport: transport, Providers: providers}
	l, err := config.Listen(context.Background(), "rdma", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	dialer := rdmanet.Dialer{Transport: transport, Providers: providers}
	for range 3 {
		if _, err := dialer.Dial("rdma", l.Addr().String()); err != nil {
			log.Fatal(err)
		}
		if _, err := l.Accept(); err != nil {
			log.Fatal(err)
		}
	}
	stats := transport.Stats()
	// This process is at both ends: it counts each twice.
	fmt.Println("conns:", stats.Conns, "peers:", stats.Peers)
	for provider, counters := range stats.Providers {
		fmt.Println(provider, "has peers:", counters.Peers, "and has lost:", counters.PeersLost)
	}
	fmt.Println("fallbacks:", stats.Fallbacks, "failed handshakes:", stats.HandshakeFailures)
	fmt.Println("within the limit:", stats.Memory.Used <= rdmanet.DefaultMemoryLimit)
	// Output:
	// conns: 6 peers: 2
	// tcp;ofi_rxm has peers: 2 and has lost: 0
	// fallbacks: map[] failed handshakes: map[]
	// within the limit: true
}

// Providers says what this machine has, what rdmanet would use, and why it would not use the rest.
func ExampleTransport_Providers() {
	transport := new(rdmanet.Transport)
	defer transport.Close()
	list, err := transport.Providers(context.Background(), netip.Addr{}, []string{"tcp;ofi_rxm"})
	if err != nil {
		log.Fatal(err)
	}
	for _, p := range list {
		switch {
		case p.Rank > 0:
			fmt.Println(p.Rank, p.Provider)
		case p.Provider == "shm":
			fmt.Println("-", p.Provider+":", p.Reason)
		}
	}
	// Output:
	// 1 tcp;ofi_rxm
	// - shm: not in the list of providers
}

// CloseIdle gives back at once what would otherwise be kept for the next Dial, for
// IdlePeerTimeout.
func ExampleTransport_CloseIdle() {
	transport := new(rdmanet.Transport)
	defer transport.Close()
	l, err := rdmanet.Listen("rdma", "127.0.0.1:0") // of DefaultTransport
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	dialer := rdmanet.Dialer{Transport: transport}
	c, err := dialer.Dial("rdma", l.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	server, err := l.Accept()
	if err != nil {
		log.Fatal(err)
	}
	go server.Close()
	c.Close()

	fmt.Println("peers:", transport.Stats().Peers)
	transport.CloseIdle()
	for transport.Stats().Peers > 0 { // goodbyes are said in the background
		time.Sleep(time.Millisecond)
	}
	fmt.Println("peers:", transport.Stats().Peers)
	// Output:
	// peers: 1
	// peers: 0
}

// With DisableReuse each conn has a TCP connection of its own, for load balancers that count
// these.
func ExampleDialer_disableReuse() {
	l, err := rdmanet.Listen("rdma", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	dialer := rdmanet.Dialer{DisableReuse: true}
	seen := make(map[string]bool)
	for range 3 {
		c, err := dialer.Dial("rdma", l.Addr().String())
		if err != nil {
			log.Fatal(err)
		}
		seen[c.(*rdmanet.Conn).Info().ControlLocal.String()] = true
		defer c.Close()
	}
	fmt.Println("different local ports:", len(seen))
	// Output: different local ports: 3
}

// Nothing is logged unless there is a Logger. At info level it is told of each handshake in
// which a preferred provider was refused, and at warn level of fallbacks.
func ExampleDialer_logger() {
	config := rdmanet.ListenConfig{Providers: []string{"shm", "tcp;ofi_rxm"}}
	l, err := config.Listen(context.Background(), "rdma", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	withoutPlaces := func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey || a.Key == "local" || a.Key == "peer" {
			return slog.Attr{}
		}
		return a
	}
	dialer := rdmanet.Dialer{
		Transport: new(rdmanet.Transport),
		Providers: []string{"tcp;ofi_rxm"},
		Logger:    slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: withoutPlaces})),
	}
	c, err := dialer.Dial("rdma", l.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	refused := c.(*rdmanet.Conn).Info().Refused
	c.Close()
	dialer.Transport.Close() // waits for the logger
	fmt.Println(refused)
	// Output:
	// level=INFO msg="rdmanet: connected with a peer" provider=tcp;ofi_rxm refused="[shm: only one side offers it]"
	// [shm: only one side offers it]
}

// Providers can also be chosen for a whole program, from outside.
func Example_environment() {
	os.Setenv("RDMANET_PROVIDERS", "tcp;ofi_rxm")
	defer os.Unsetenv("RDMANET_PROVIDERS")
	l, err := rdmanet.Listen("rdma", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	c, err := rdmanet.Dial("rdma", l.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	fmt.Println(c.(*rdmanet.Conn).Info().Provider)
	// Output: tcp;ofi_rxm
}

func ExampleTransport_Conns() {
	t := new(rdmanet.Transport)
	defer t.Close()
	for _, c := range t.Conns() {
		if c.WaitsFor != "" {
			fmt.Println(c.Remote, "waits for", c.WaitsFor)
		}
	}
	// Output:
}
