package rdmanet_test

import (
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// bothEnds returns the two ends of a new conn.
func bothEnds() (client, server *rdmanet.Conn) {
	l, err := rdmanet.Listen("rdma", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close() // accepted conns live on
	c, err := rdmanet.Dial("rdma", l.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	s, err := l.Accept()
	if err != nil {
		log.Fatal(err)
	}
	return c.(*rdmanet.Conn), s.(*rdmanet.Conn)
}

// send writes text to w.
func send(w io.Writer, text string) {
	if _, err := io.WriteString(w, text); err != nil {
		log.Fatal(err)
	}
}

// Info says what a conn really runs over. Its Reused says whether the conn shares a handshake
// with an earlier one.
func ExampleConn_Info() {
	client, server := bothEnds()
	defer server.Close()
	defer client.Close()
	send(client, strings.Repeat("x", 100))
	info := client.Info()
	fmt.Println("same provider at both ends:", info.Provider != "" && info.Provider == server.Info().Provider)
	fmt.Println("plain TCP:", info.Provider == "", "because of:", info.Fallback)
	fmt.Println("sent in messages:", info.SmallSent, "bytes, by RDMA write:", info.LargeSent)
	// Output:
	// same provider at both ends: true
	// plain TCP: false because of: <nil>
	// sent in messages: 100 bytes, by RDMA write: 0
}

// After CloseWrite, the peer reads io.EOF and can still answer.
func ExampleConn_CloseWrite() {
	client, server := bothEnds()
	go func() {
		question, err := io.ReadAll(server) // until the client's CloseWrite
		if err != nil {
			log.Fatal(err)
		}
		fmt.Fprintf(server, "%s? yes", question)
		server.Close()
	}()
	send(client, "everything there")
	if err := client.CloseWrite(); err != nil {
		log.Fatal(err)
	}
	answer, err := io.ReadAll(client)
	if err != nil {
		log.Fatal(err)
	}
	client.Close()
	fmt.Printf("%s\n", answer)
	// Output: everything there? yes
}

// After CloseRead, what the peer sends is discarded. Writing still works.
func ExampleConn_CloseRead() {
	client, server := bothEnds()
	if err := client.CloseRead(); err != nil {
		log.Fatal(err)
	}
	send(server, "nobody reads this")
	_, err := client.Read(make([]byte, 1))
	fmt.Println(err)
	_, err = io.WriteString(client, "this still arrives")
	fmt.Println(err)
	client.Close()
	server.Close()
	// Output:
	// EOF
	// <nil>
}

// With a linger time of 0, Close resets the conn at once, as over TCP.
func ExampleConn_SetLinger() {
	client, server := bothEnds()
	defer server.Close()
	if err := client.SetLinger(0); err != nil {
		log.Fatal(err)
	}
	if err := client.Close(); err != nil {
		log.Fatal(err)
	}
	_, err := server.Read(make([]byte, 1))
	fmt.Println(errors.Is(err, syscall.ECONNRESET))
	// Output: true
}

// A Read that a deadline ends loses nothing: with a later deadline, or none, the conn can be
// used again.
func ExampleConn_SetReadDeadline() {
	client, server := bothEnds()
	defer server.Close()
	defer client.Close()
	if err := client.SetReadDeadline(time.Now().Add(10 * time.Millisecond)); err != nil {
		log.Fatal(err)
	}
	buf := make([]byte, 5)
	_, err := client.Read(buf)
	fmt.Println(errors.Is(err, os.ErrDeadlineExceeded))

	if err := client.SetReadDeadline(time.Time{}); err != nil { // none
		log.Fatal(err)
	}
	send(server, "hello")
	n, err := io.ReadFull(client, buf)
	fmt.Printf("%s %v\n", buf[:n], err)
	// Output:
	// true
	// hello <nil>
}

// io.Copy finds ReadFrom by itself. Regular files are read straight into registered memory if
// the fabric sends from there.
func ExampleConn_ReadFrom() {
	client, server := bothEnds()
	received := make(chan int64)
	go func() {
		n, err := io.Copy(io.Discard, server) // WriteTo
		if err != nil {
			log.Fatal(err)
		}
		server.Close()
		received <- n
	}()
	file, err := os.Open("example_conn_test.go")
	if err != nil {
		log.Fatal(err)
	}
	defer file.Close()
	sent, err := io.Copy(client, file) // ReadFrom
	if err != nil {
		log.Fatal(err)
	}
	client.Close()
	fmt.Println(sent > 0 && sent == <-received)
	// Output: true
}

// io.Copy finds WriteTo by itself. What the fabric wrote directly reaches the writer without a
// copy.
func ExampleConn_WriteTo() {
	client, server := bothEnds()
	go func() {
		send(server, strings.Repeat("x", 1<<20))
		server.Close()
	}()
	n, err := io.Copy(io.Discard, client)
	fmt.Println(n, err)
	client.Close()
	// Output: 1048576 <nil>
}

// WriteBuffers does what net.Buffers.WriteTo does on a *net.TCPConn: it writes several slices
// as one, with nobody else's bytes between them.
func ExampleConn_WriteBuffers() {
	client, server := bothEnds()
	defer server.Close()
	message := net.Buffers{[]byte("header, "), []byte("body, "), []byte("trailer")}
	n, err := client.WriteBuffers(&message)
	fmt.Println(n, err, len(message))
	client.Close()
	got, err := io.ReadAll(server)
	fmt.Printf("%s %v\n", got, err)
	// Output:
	// 21 <nil> 0
	// header, body, trailer <nil>
}

// AllocBuffer and SendBuffer save the sender a copy, and RecvBuffer saves the receiver one. The
// other side need not know: it is the same stream as that of Read and Write.
func ExampleConn_SendBuffer() {
	client, server := bothEnds()
	buffer, err := client.AllocBuffer(256 << 10)
	if err != nil { // rdmanet.ErrMemory if the budget is used up: use Write then
		log.Fatal(err)
	}
	const text = "filled in where the fabric reads it"
	copy(buffer.Bytes(), text)                        // what was there before is undefined
	if err := client.SendBuffer(buffer); err != nil { // buffer is not ours any more
		log.Fatal(err)
	}
	go client.Close()

	received := 0
	for {
		piece, err := server.RecvBuffer()
		if err == io.EOF {
			break
		}
		if err != nil {
			log.Fatal(err)
		}
		if received == 0 {
			fmt.Printf("%s\n", piece.Bytes()[:len(text)])
		}
		received += len(piece.Bytes())
		piece.Release() // the peer may write there again
	}
	server.Close()
	fmt.Println(received, "bytes")
	// Output:
	// filled in where the fabric reads it
	// 262144 bytes
}

// Release gives back a Buffer that is not sent.
func ExampleConn_AllocBuffer() {
	client, server := bothEnds()
	defer server.Close()
	defer client.Close()
	buffer, err := client.AllocBuffer(4096)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(buffer.Bytes()))
	buffer.Release()
	_, err = client.AllocBuffer(0)
	fmt.Println(err != nil)
	// Output:
	// 4096
	// true
}

// RecvBuffer lends the memory that the peer wrote to, until Release.
func ExampleConn_RecvBuffer() {
	client, server := bothEnds()
	defer client.Close()
	send(server, "borrowed")
	buffer, err := client.RecvBuffer()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", buffer.Bytes())
	buffer.Release()

	server.Close()
	_, err = client.RecvBuffer()
	fmt.Println(err)
	// Output:
	// borrowed
	// EOF
}
