//go:build linux && cgo

package ofi_test

import (
	"errors"
	"fmt"
	"log"
	"runtime"
	"syscall"

	"github.com/seed202c38ff/fabricnet/cgo/ofi"
)

// Two endpoints in one process exchange a message.
func Example() {
	// Memory that libfabric keeps after a call must not be on the Go heap.
	buf, err := syscall.Mmap(-1, 0, 4096, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = syscall.Munmap(buf) }() // after the endpoints are closed

	list, err := ofi.GetInfo(ofi.Hints{Provider: "tcp;ofi_rxm", Source: "127.0.0.1"})
	if err != nil {
		log.Fatal(err)
	}
	defer list.Free()
	sender, receiver := endpoint(list), endpoint(list)
	defer sender.ep.Close()
	defer sender.batch.Free()
	defer receiver.ep.Close()
	defer receiver.batch.Free()

	if posted, _ := receiver.exchange(ofi.Op{Kind: ofi.Recv, Tag: 42, Buf: buf[:1024]}); posted != 1 {
		log.Fatal("the receive was not posted")
	}
	to, err := sender.ep.Insert(receiver.ep.Name())
	if err != nil {
		log.Fatal(err)
	}

	out := buf[1024:][:copy(buf[1024:], "hello")]
	hello := ofi.Op{Kind: ofi.Inject, To: to, Buf: out}
	for sent := false; ; runtime.Gosched() {
		// Nothing moves unless both sides poll. Nothing is posted while the queue is full.
		if sent {
			sender.exchange()
		} else if posted, _ := sender.exchange(hello); posted == 1 {
			sent = true
		}
		if _, done := receiver.exchange(); len(done) > 0 {
			fmt.Printf("tag %d: %q\n", done[0].Tag, buf[:done[0].Len])
			return
		}
	}
	// Output: tag 42: "hello"
}

// node is an endpoint and a batch to post and reap with.
type node struct {
	ep    *ofi.Endpoint
	batch *ofi.Batch
}

// endpoint opens an endpoint of the entry that libfabric prefers.
func endpoint(list *ofi.InfoList) node {
	for info := range list.All() {
		ep, err := ofi.Open(info, ofi.Options{})
		if err != nil {
			log.Fatal(err)
		}
		batch, err := ofi.NewBatch()
		if err != nil {
			log.Fatal(err)
		}
		return node{ep, batch}
	}
	panic("GetInfo returns no empty list")
}

// exchange posts operations and reaps completions in one call into C.
func (n node) exchange(ops ...ofi.Op) (posted int, done []ofi.Completion) {
	n.batch.Reset()
	for _, op := range ops {
		n.batch.Add(&op)
	}
	posted, reaped, postErr, reapErr := n.ep.Exchange(n.batch, ofi.BatchDone)
	if err := errors.Join(postErr, reapErr); err != nil {
		log.Fatal(err)
	}
	for i := range reaped {
		done = append(done, n.batch.Completion(i))
	}
	return posted, done
}

// A provider that does not exist is an error that errors.Is recognizes.
func ExampleGetInfo() {
	list, err := ofi.GetInfo(ofi.Hints{Provider: "shm"})
	if err != nil {
		log.Fatal(err)
	}
	defer list.Free()
	for info := range list.All() {
		fmt.Println(info.Provider(), "injects up to 64 bytes at least:", info.InjectSize() >= 64)
		break
	}
	_, err = ofi.GetInfo(ofi.Hints{Provider: "nonesuch"})
	fmt.Println(errors.Is(err, syscall.ENODATA))
	// Output:
	// shm injects up to 64 bytes at least: true
	// true
}
