//go:build linux && cgo

// Messages sends a message each way over a fabric, with libfabric alone. What package rdmanet does
// for you begins with these steps. Read it along with fabric(7) and the man pages that it names.
// Package side, in examples/internal, opens the endpoint.
//
// In one command, as two processes:
//
//	go run ./examples/messages
//
// In two terminals, or on two hosts of one fabric:
//
//	go run ./examples/messages -serve :9000
//	go run ./examples/messages -dial localhost:9000
//
// The flag -provider chooses the provider, which has to be the same on both sides: fi_info -l lists
// those of your machine. shm works within a host only.
package main

import (
	"encoding/gob"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"

	"github.com/seed202c38ff/fabricnet/cgo/ofi"
	"github.com/seed202c38ff/fabricnet/examples/internal/side"
)

func main() {
	log.SetFlags(0)
	address := flag.String("serve", "", "wait for the other process on this TCP `address`, such as :9000")
	server := flag.String("dial", "", "find the other process at this TCP `address`, such as localhost:9000")
	provider := flag.String("provider", "tcp;ofi_rxm", "libfabric's `name` of the provider")
	flag.Parse()
	answer := func(oob net.Conn) error { return with(oob, *provider, (*talker).answer) }
	ask := func(oob net.Conn) error { return with(oob, *provider, (*talker).ask) }

	var err error
	switch {
	case *address != "":
		err = side.Serve(*address, answer)
	case *server != "":
		err = side.Dial(*server, ask)
	default:
		err = side.Both(answer, "-provider", *provider)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// size is the size of each buffer in bytes. A message must fit into the buffer that receives it, or
// the receive fails with FI_ETRUNC.
const size = 4096

// talker is a side that knows its peer.
type talker struct {
	*side.Side
	oob     net.Conn
	in, out []byte
	desc    uintptr // of both buffers
	peer    ofi.Addr
}

// with opens an endpoint, makes it and the peer's endpoint known to each other, and calls f.
func with(oob net.Conn, provider string, f func(*talker) error) (err error) {
	s, err := side.Open(ofi.Hints{Provider: provider}, oob)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	t := &talker{Side: s, oob: oob}
	mem, region, err := s.Memory(2*size, ofi.AccessLocal)
	if err != nil {
		return err
	}
	// The descriptor says to which registration a buffer belongs (fi_mr_desc).
	t.in, t.out, t.desc = mem[:size], mem[size:], region.Desc()

	// Post the receive (fi_recv of fi_msg(3)) before the peer knows where to send. On a reliable
	// endpoint a message that finds no buffer is not lost, but its sender is held up until there is
	// one, and may give up (resource management in fi_domain(3)).
	if err := t.Post(ofi.Op{Kind: ofi.Recv, Buf: t.in, Desc: t.desc}); err != nil {
		return err
	}
	if err := t.meet(); err != nil {
		return err
	}
	return f(t)
}

// meet exchanges names with the peer. A fabric does not do that: endpoints have to learn each
// other's names in some other way, out of band. Here that is a TCP connection.
func (t *talker) meet() error {
	// The name is what fi_getname of fi_cm(3) returns: an IP address and port with some
	// providers, a device's own address with others. It goes over as it is.
	if err := gob.NewEncoder(t.oob).Encode(t.Name()); err != nil {
		return err
	}
	var name []byte
	if err := gob.NewDecoder(t.oob).Decode(&name); err != nil {
		return err
	}
	// The address vector turns the name into a number, an fi_addr_t, that operations
	// take (fi_av_insert of fi_av(3)).
	peer, err := t.Insert(name)
	t.peer = peer
	return err
}

// ask sends first and then receives.
func (t *talker) ask() error {
	if err := t.send("hello over " + t.Info().Provider()); err != nil {
		return err
	}
	got, err := t.receive()
	if err != nil {
		return err
	}
	fmt.Printf("client: received %q\n", got)
	return nil // which closes oob
}

// answer receives first and then sends.
func (t *talker) answer() error {
	got, err := t.receive()
	if err != nil {
		return err
	}
	fmt.Printf("server: received %q\n", got)
	if err := t.send("hello to you, too"); err != nil {
		return err
	}
	// A complete send means that its buffer may be used again, not that the message has arrived
	// (with FI_DELIVERY_COMPLETE it would: fi_cq(3)). The provider works on it while we poll, so
	// leave only after the peer.
	return t.Until(func() error {
		if _, err := t.oob.Read(make([]byte, 1)); err != io.EOF {
			return fmt.Errorf("want the end of the peer, got %w", err)
		}
		return nil
	})
}

// send sends a message (fi_send of fi_msg(3)) and waits until its buffer is free.
func (t *talker) send(text string) error {
	n := copy(t.out, text)
	if err := t.Post(ofi.Op{Kind: ofi.Send, To: t.peer, Buf: t.out[:n], Desc: t.desc}); err != nil {
		return err
	}
	_, err := t.Wait(ofi.Send)
	return err
}

// receive waits for a message in the buffer that was posted. The completion tells its length.
func (t *talker) receive() (string, error) {
	c, err := t.Wait(ofi.Recv)
	return string(t.in[:c.Len]), err
}
