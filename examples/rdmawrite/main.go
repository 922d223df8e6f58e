//go:build linux && cgo

// Rdmawrite writes into another process's memory over a fabric, with libfabric alone. The owner of
// the memory says where it is and lets the other process write to it. It takes no part in the
// transfer, but learns when it has ended. Read this example after examples/messages, along with
// fi_rma(3) and the man pages that it names.
//
// In one command, as two processes:
//
//	go run ./examples/rdmawrite
//
// In two terminals, or on two hosts of one fabric:
//
//	go run ./examples/rdmawrite -serve :9000
//	go run ./examples/rdmawrite -dial localhost:9000
//
// The flag -provider chooses the provider, which has to be the same on both sides: fi_info -l lists
// those of your machine. shm works within a host only.
package main

import (
	"encoding/gob"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"syscall"

	"github.com/seed202c38ff/fabricnet/cgo/ofi"
	"github.com/seed202c38ff/fabricnet/examples/internal/side"
)

func main() {
	log.SetFlags(0)
	address := flag.String("serve", "", "own the memory, and wait for the writer on this TCP `address`, such as :9000")
	server := flag.String("dial", "", "write into the memory of the owner at this TCP `address`, such as localhost:9000")
	provider := flag.String("provider", "tcp;ofi_rxm", "libfabric's `name` of the provider")
	data := flag.Bool("data", true, "use completion data, if the provider has it")
	flag.Parse()
	own := func(oob net.Conn) error { return own(oob, *provider, *data) }
	write := func(oob net.Conn) error { return write(oob, *provider, *data) }

	var err error
	switch {
	case *address != "":
		err = side.Serve(*address, own)
	case *server != "":
		err = side.Dial(*server, write)
	default:
		err = side.Both(own, "-provider", *provider, fmt.Sprint("-data=", *data))
	}
	if err != nil {
		log.Fatal(err)
	}
}

const (
	size   = 64 << 10 // of the memory, in bytes
	offset = 1000     // where in it the writer writes
	length = 50_000   // and how much
	note   = 4711     // the completion data
)

// offer is what a writer has to know. It travels out of band.
type offer struct {
	Name []byte // of the owner's endpoint
	Base uint64 // address of the first byte
	Key  uint64 // permits writing there, to anybody who has it
	Data bool   // the owner expects completion data
}

// pattern is what the writer writes.
func pattern(i int) byte { return byte(i*i>>3 + i) }

// own offers memory, waits until something was written into it, and looks at it.
func own(oob net.Conn, provider string, data bool) (err error) {
	s, data, err := open(oob, provider, data)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	// Memory that is registered with FI_REMOTE_WRITE has a key, by which peers refer to it. Whether
	// they address it by its virtual address here or from 0 on depends on the provider
	// (FI_MR_VIRT_ADDR in fi_mr(3)): Base has the right address.
	mem, region, err := s.Memory(size, ofi.AccessRemoteWrite)
	if err != nil {
		return err
	}
	fromWriter := gob.NewDecoder(oob)
	if err := gob.NewEncoder(oob).Encode(offer{s.Name(), region.Base(), region.Key(), data}); err != nil {
		return err
	}
	var name []byte
	if err := fromWriter.Decode(&name); err != nil {
		return err
	}
	// Some providers also need the address vector for their acknowledgements.
	if _, err := s.Insert(name); err != nil {
		return err
	}

	// Memory does not tell when it changes. A write with completion data also puts a completion
	// into this side's queue, after the bytes have arrived (FI_REMOTE_CQ_DATA in fi_cq(3)). Without
	// completion data the writer has to tell: here, out of band.
	if data {
		c, err := s.Wait(ofi.RemoteWrite)
		if err != nil {
			return err
		}
		fmt.Println("owner: a write is complete, with data", c.Data)
	}
	var written int
	if err := s.Until(func() error { return fromWriter.Decode(&written) }); err != nil {
		return err
	}
	return check(mem, written)
}

// check compares all of the memory with what it should hold.
func check(mem []byte, written int) error {
	for i, b := range mem {
		want := byte(0)
		if i >= offset && i < offset+length {
			want = pattern(i - offset)
		}
		if b != want {
			return fmt.Errorf("owner: byte %d is %d, and should be %d", i, b, want)
		}
	}
	fmt.Printf("owner: %d bytes are there, and none beside them changed\n", written)
	return nil
}

// write writes into the owner's memory.
func write(oob net.Conn, provider string, data bool) (err error) {
	s, _, err := open(oob, provider, data)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	var o offer
	if err := gob.NewDecoder(oob).Decode(&o); err != nil {
		return err
	}
	toOwner := gob.NewEncoder(oob)
	if err := toOwner.Encode(s.Name()); err != nil {
		return err
	}
	owner, err := s.Insert(o.Name)
	if err != nil {
		return err
	}
	mem, region, err := s.Memory(length, ofi.AccessLocal)
	if err != nil {
		return err
	}
	for i := range mem {
		mem[i] = pattern(i)
	}
	op := ofi.Op{
		Kind: ofi.Write, To: owner, Buf: mem, Desc: region.Desc(),
		Remote: o.Base + offset, Key: o.Key,
		// On its own, the completion of a write says only that mem may be used again. This asks for
		// more: that the bytes are in the owner's memory (FI_DELIVERY_COMPLETE in fi_cq(3)).
		Deliver: true,
	}
	if o.Data {
		op.Kind, op.Data = ofi.WriteData, note
	}
	if err := s.Post(op); err != nil {
		return err
	}
	if _, err := s.Wait(op.Kind); err != nil {
		return err
	}
	fmt.Printf("writer: wrote %d bytes over %s\n", length, s.Info().Provider())
	return toOwner.Encode(length)
}

// open opens an endpoint, with completion data if that is wanted and available. Both sides ask for
// the same, and so get endpoints that understand each other.
func open(oob net.Conn, provider string, data bool) (*side.Side, bool, error) {
	hints := ofi.Hints{Provider: provider, DeliveryComplete: true}
	if data {
		hints.CQDataSize = 4
		s, err := side.Open(hints, oob)
		if !errors.Is(err, syscall.ENODATA) {
			return s, true, err
		}
		hints.CQDataSize = 0
	}
	s, err := side.Open(hints, oob)
	return s, false, err
}
