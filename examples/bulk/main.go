// Bulk sends bytes in large pieces without a copy: the sender makes them in memory that the fabric
// reads, and the receiver looks at them where the fabric wrote them. Between processes of one host,
// which map the same memory, there is one copy.
//
// In one command, as two processes:
//
//	go run ./examples/bulk
//
// In two terminals, or on two hosts of one fabric:
//
//	go run ./examples/bulk -serve :9000
//	go run ./examples/bulk -send localhost:9000 -size 4096
//
// The rate includes making the bytes and computing a checksum on both sides.
// RDMANET_PROVIDERS='tcp;ofi_rxm' in the environment chooses the provider.
package main

import (
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"io"
	"log"
	"net"
	"os"
	"os/exec"
	"time"

	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// piece is how much is sent at a time, in bytes.
const piece = 1 << 20

// castagnoli is the CRC that processors compute in hardware.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func main() {
	log.SetFlags(0)
	address := flag.String("serve", "", "receive on this `address`, such as :9000")
	server := flag.String("send", "", "send to the receiver at this `address`, such as localhost:9000")
	size := flag.Int("size", 1024, "how many MiB to send")
	flag.Parse()

	var err error
	switch {
	case *address != "":
		err = serve(*address)
	case *server != "":
		err = send(*server, *size)
	default:
		err = both(*size)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// summary is what the receiver answers with.
type summary struct {
	Bytes uint64
	Sum   uint32
}

// send sends size MiB and compares the receiver's summary with its own.
func send(address string, size int) (err error) {
	nc, err := rdmanet.Dial("rdma", address)
	if err != nil {
		return err
	}
	c := nc.(*rdmanet.Conn)
	defer func() { err = errors.Join(err, c.Close()) }()
	fmt.Println("connected over libfabric provider", c.Info().Provider)

	var want, got summary
	start := time.Now()
	for i := range size {
		// A Buffer is registered memory. It comes from a pool, is filled where it
		// is, and goes back to the pool when the fabric has sent it.
		b, err := c.AllocBuffer(piece)
		if err != nil {
			return err
		}
		fill(b.Bytes(), uint64(i))
		want.Bytes += piece
		want.Sum = crc32.Update(want.Sum, castagnoli, b.Bytes())
		if err := c.SendBuffer(b); err != nil { // b is no longer ours
			return err
		}
	}
	if err := c.CloseWrite(); err != nil {
		return err
	}
	if err := binary.Read(c, binary.BigEndian, &got); err != nil {
		return err
	}
	took := time.Since(start)
	fmt.Printf("sent %d bytes in %v, %.2f GB/s with checksums\n",
		want.Bytes, took.Round(time.Microsecond), float64(want.Bytes)/1e9/took.Seconds())
	if got != want {
		return fmt.Errorf("the receiver has %d bytes with checksum %08x, not %d with %08x", got.Bytes, got.Sum, want.Bytes, want.Sum)
	}
	fmt.Printf("CRC-32C %08x on both sides\n", got.Sum)
	return nil
}

// fill stands in for what a program computes: words that differ everywhere.
func fill(b []byte, seed uint64) {
	word := seed<<32 | 1
	for ; len(b) >= 8; b = b[8:] {
		binary.LittleEndian.PutUint64(b, word*0x9e3779b97f4a7c15)
		word++
	}
}

func serve(address string) error {
	l, err := rdmanet.Listen("rdma", address)
	if err != nil {
		return err
	}
	fmt.Println("receiving on", l.Addr())
	return receiveAll(l)
}

// receiveAll serves each sender, until l is closed.
func receiveAll(l net.Listener) error {
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			err := receive(c.(*rdmanet.Conn))
			if err := errors.Join(err, c.Close()); err != nil {
				log.Print("receiver: ", err)
			}
		}()
	}
}

// receive takes all bytes of a sender and answers with their summary.
func receive(c *rdmanet.Conn) error {
	var got summary
	for {
		// This Buffer is the piece of the landing ring that the fabric has written. Until it is
		// released the sender has that much less room.
		b, err := c.RecvBuffer()
		if err == io.EOF {
			return binary.Write(c, binary.BigEndian, got)
		}
		if err != nil {
			return err
		}
		got.Bytes += uint64(len(b.Bytes()))
		got.Sum = crc32.Update(got.Sum, castagnoli, b.Bytes())
		b.Release()
	}
}

// both receives in this process and sends from another.
func both(size int) error {
	l, err := rdmanet.Listen("rdma", "127.0.0.1:0")
	if err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() { served <- receiveAll(l) }()

	self, err := os.Executable()
	if err != nil {
		return err
	}
	sender := exec.Command(self, "-send", l.Addr().String(), "-size", fmt.Sprint(size))
	sender.Stdout, sender.Stderr = os.Stdout, os.Stderr
	if err := sender.Run(); err != nil {
		return fmt.Errorf("sender: %w", err)
	}
	if err := l.Close(); err != nil {
		return err
	}
	if err := <-served; !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}
