package rdmanet_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"

	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// Each example has a listener of its own, and so a peer, which is kept for a while after the
// last conn. Endpoints that peers share have room for a limited number. Only the processes that
// tests start use DefaultTransport for other things.
func init() {
	if os.Getenv(rdmatest.RoleVar) == "" {
		rdmanet.DefaultTransport.IdlePeerTimeout = 20 * time.Millisecond
	}
}

// A server and a client as over TCP; only Listen and Dial are those of rdmanet.
func Example() {
	l, err := rdmanet.Listen("rdma", "127.0.0.1:0") // was net.Listen("tcp", ...)
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			log.Fatal(err)
		}
		defer c.Close()
		if _, err := io.Copy(c, c); err != nil {
			log.Fatal(err)
		}
	}()

	c, err := rdmanet.Dial("rdma", l.Addr().String()) // was net.Dial("tcp", ...)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, "hello over the fabric"); err != nil {
		log.Fatal(err)
	}
	if err := c.(*rdmanet.Conn).CloseWrite(); err != nil {
		log.Fatal(err)
	}
	answer, err := io.ReadAll(c)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", answer)
	// Output: hello over the fabric
}

// Anything with a Serve(net.Listener) method takes an rdmanet listener, and anything with a
// DialContext field takes an rdmanet dialer.
func Example_http() {
	l, err := rdmanet.Listen("rdma", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		local := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
		_, fabric := rdmanet.InfoOf(local)
		fmt.Fprintf(w, "%s over a fabric: %v", r.URL.Path, fabric)
	})}
	go func() { _ = server.Serve(l) }() // until Close
	defer server.Close()

	dialer := new(rdmanet.Dialer)
	client := &http.Client{Transport: &http.Transport{DialContext: dialer.DialContext}}
	defer client.CloseIdleConnections()
	response, err := client.Get("http://" + l.Addr().String() + "/hello")
	if err != nil {
		log.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", body)
	// Output: /hello over a fabric: true
}

// Errors are *net.OpError, and errors.Is finds what it finds over TCP.
func Example_errors() {
	l, err := rdmanet.Listen("rdma", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	l.Close()
	_, err = l.Accept()
	fmt.Println("accept after Close:", errors.Is(err, net.ErrClosed))

	_, err = rdmanet.Dial("rdma", "127.0.0.1:1")
	var failed *net.OpError
	fmt.Println("nobody listens:", errors.Is(err, syscall.ECONNREFUSED))
	fmt.Println("as over TCP:", errors.As(err, &failed), failed.Op, failed.Addr)

	_, err = rdmanet.Dial("udp", "127.0.0.1:1")
	fmt.Println(err)
	// Output:
	// accept after Close: true
	// nobody listens: true
	// as over TCP: true dial 127.0.0.1:1
	// dial udp: unknown network udp
}

func ExampleListen() {
	l, err := rdmanet.Listen("rdma", "127.0.0.1:0") // port 0: any free one
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	host, _, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(l.Addr().Network(), host)
	// Output: tcp 127.0.0.1
}

func ExampleDial() {
	l, err := rdmanet.Listen("rdma", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()

	// Dial succeeds when the backlog has taken the conn, before Accept, as over TCP.
	c, err := rdmanet.Dial("rdma", l.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(c.RemoteAddr().String() == l.Addr().String())

	server, err := l.Accept()
	if err != nil {
		log.Fatal(err)
	}
	go c.Close()
	_, err = server.Read(make([]byte, 1))
	fmt.Println(err)
	server.Close()
	// Output:
	// true
	// EOF
}

// The peer accepts the TCP connection and says nothing. The time-out bounds the whole dial.
func ExampleDialTimeout() {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	defer silent.Close()
	_, err = rdmanet.DialTimeout("rdma", silent.Addr().String(), 50*time.Millisecond)
	var timeout net.Error
	fmt.Println(errors.As(err, &timeout) && timeout.Timeout(), errors.Is(err, context.DeadlineExceeded))
	// Output: true true
}

// The context ends the attempt, not the conn.
func ExampleDialer_DialContext() {
	l, err := rdmanet.Listen("rdma", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()

	d := rdmanet.Dialer{Timeout: 5 * time.Second}
	ctx, cancel := context.WithCancel(context.Background())
	c, err := d.DialContext(ctx, "rdma", l.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	cancel()
	_, err = io.WriteString(c, "still there")
	fmt.Println(err)

	_, err = d.DialContext(ctx, "rdma", l.Addr().String())
	fmt.Println(errors.Is(err, context.Canceled))
	// Output:
	// <nil>
	// true
}

// If no fabric reaches the peer, FallbackTCP makes a plain TCP connection, and the conn says
// why. The listener must accept such connections.
func ExampleDialer_fallback() {
	config := rdmanet.ListenConfig{AcceptTCP: true, Providers: []string{"tcp;ofi_rxm"}}
	l, err := config.Listen(context.Background(), "rdma", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()

	strict := rdmanet.Dialer{Providers: []string{"shm"}}
	_, err = strict.Dial("rdma", l.Addr().String())
	fmt.Println("without fallback:", errors.Is(err, rdmanet.ErrNoProvider))

	lenient := rdmanet.Dialer{Providers: []string{"shm"}, Fallback: rdmanet.FallbackTCP}
	c, err := lenient.Dial("rdma", l.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	info, _ := rdmanet.InfoOf(c.RemoteAddr())
	fmt.Printf("with it: %T %v\n", c, errors.Is(info.Fallback, rdmanet.ErrNoProvider))
	// Output:
	// without fallback: true
	// with it: *net.TCPConn true
}

// One port serves both kinds of clients. They are told apart by the first bytes that they send.
func ExampleListenConfig_Listen_acceptTCP() {
	config := rdmanet.ListenConfig{AcceptTCP: true}
	l, err := config.Listen(context.Background(), "rdma", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		local := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
		info, _ := rdmanet.InfoOf(local)
		fmt.Fprintln(w, "over a fabric:", info.Provider != "")
	})}
	go func() { _ = server.Serve(l) }() // until Close
	defer server.Close()

	plain := new(net.Dialer).DialContext
	fabric := new(rdmanet.Dialer).DialContext
	for _, dial := range []func(context.Context, string, string) (net.Conn, error){plain, fabric} {
		client := &http.Client{Transport: &http.Transport{DialContext: dial}}
		response, err := client.Get("http://" + l.Addr().String())
		if err != nil {
			log.Fatal(err)
		}
		if _, err := io.Copy(os.Stdout, response.Body); err != nil {
			log.Fatal(err)
		}
		response.Body.Close()
		client.CloseIdleConnections()
	}
	// Output:
	// over a fabric: false
	// over a fabric: true
}

func ExampleListener_SetDeadline() {
	l, err := rdmanet.Listen("rdma", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	if err := l.(*rdmanet.Listener).SetDeadline(time.Now().Add(10 * time.Millisecond)); err != nil {
		log.Fatal(err)
	}
	_, err = l.Accept()
	fmt.Println(errors.Is(err, os.ErrDeadlineExceeded))
	// Output: true
}
