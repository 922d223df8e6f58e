// Copy copies files to another host over a fabric. The receiver checks their SHA-256 before they
// appear under their names.
//
// In one command, as two processes:
//
//	go run ./examples/copy
//
// In two terminals, or on two hosts of one fabric:
//
//	go run ./examples/copy -serve :9000 -dir /tmp
//	go run ./examples/copy go.mod localhost:9000
//
// Anybody who can reach the receiver may write files into its directory, even over others, but
// nowhere else. RDMANET_PROVIDERS=tcp;ofi_rxm in the environment chooses the provider.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/seed202c38ff/fabricnet/rdmanet"
)

func main() {
	log.SetFlags(0)
	address := flag.String("serve", "", "receive files on this `address`, such as :9000")
	dir := flag.String("dir", ".", "the directory for what is received")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: copy -serve address [-dir directory], or copy file host:port")
		flag.PrintDefaults()
	}
	flag.Parse()

	var err error
	switch {
	case *address != "":
		err = serve(*address, *dir)
	case flag.NArg() == 2:
		err = send(flag.Arg(0), flag.Arg(1))
	case flag.NArg() == 0 && flag.NFlag() == 0:
		err = both()
	default:
		flag.Usage()
		os.Exit(2)
	}
	if err != nil {
		log.Fatal(err)
	}
}

func serve(address, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	l, err := rdmanet.Listen("rdma", address)
	if err != nil {
		return err
	}
	fmt.Println("receiving into", dir, "on", l.Addr())
	return receiveAll(l, root)
}

// receiveAll serves each sender, until l is closed.
func receiveAll(l net.Listener, root *os.Root) error {
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			if err := errors.Join(receive(c, root), c.Close()); err != nil {
				log.Printf("receiver: from %s: %v", c.RemoteAddr(), err)
			}
		}()
	}
}

// both receives in this process and sends a file of random bytes from another.
func both() (err error) {
	dir, err := os.MkdirTemp("", "copy")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	want := make([]byte, 16<<20+1)
	_, _ = rand.NewChaCha8([32]byte{}).Read(want)
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, want, 0o600); err != nil {
		return err
	}
	into := filepath.Join(dir, "received")
	if err := os.Mkdir(into, 0o700); err != nil {
		return err
	}
	root, err := os.OpenRoot(into)
	if err != nil {
		return err
	}
	defer root.Close()
	l, err := rdmanet.Listen("rdma", "127.0.0.1:0")
	if err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() { served <- receiveAll(l, root) }()
	if err := runSender(file, l.Addr().String()); err != nil {
		return fmt.Errorf("sender: %w", err)
	}
	if err := l.Close(); err != nil {
		return err
	}
	if err := <-served; !errors.Is(err, net.ErrClosed) {
		return err
	}
	return compare(root, filepath.Base(file), want)
}

func runSender(file, address string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	sender := exec.Command(self, file, address)
	sender.Stdout, sender.Stderr = os.Stdout, os.Stderr
	return sender.Run()
}

func compare(root *os.Root, name string, want []byte) error {
	f, err := root.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	got, err := io.ReadAll(f)
	if err != nil {
		return err
	}
	if !bytes.Equal(want, got) {
		return fmt.Errorf("the copy has %d bytes for %d, or others", len(got), len(want))
	}
	fmt.Println("the copy is the same as the file")
	return nil
}
