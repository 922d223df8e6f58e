// Http serves files over a fabric, and downloads them, with net/http.
//
// In one command, as two processes:
//
//	go run ./examples/http
//
// In two terminals, or on two hosts of one fabric:
//
//	go run ./examples/http -serve :8080 -dir .
//	go run ./examples/http -get http://localhost:8080/go.mod
//
// RDMANET_PROVIDERS='tcp;ofi_rxm' in the environment chooses the provider.
package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/seed202c38ff/fabricnet/httpdialer"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

func main() {
	log.SetFlags(0)
	address := flag.String("serve", "", "serve files on this `address`, such as :8080")
	dir := flag.String("dir", ".", "the directory to serve")
	url := flag.String("get", "", "download this `URL`")
	sum := flag.String("sha256", "", "fail unless the download has this SHA-256, in hex")
	plain := flag.Bool("tcp", false, "download over TCP, to compare")
	size := flag.Int("size", 128, "without -serve and -get: the MiB to serve and download")
	flag.Parse()

	var err error
	switch {
	case *address != "":
		err = serve(*address, *dir)
	case *url != "":
		err = download(*url, *sum, *plain)
	case *plain || *size < 1:
		err = errors.New("-tcp needs -get, and -size is at least 1")
	default:
		err = both(*size << 20)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// listen accepts plain TCP clients, too. Otherwise it would be rdmanet.Listen("rdma", address),
// where any other server has net.Listen("tcp", address).
func listen(address string) (net.Listener, error) {
	config := rdmanet.ListenConfig{AcceptTCP: true}
	return config.Listen(context.Background(), "rdma", address)
}

func serve(address, dir string) error {
	l, err := listen(address)
	if err != nil {
		return err
	}
	fmt.Println("serving", dir, "on", l.Addr())
	return http.Serve(l, http.FileServer(http.Dir(dir)))
}

// download fetches url, over plain TCP if that is asked for and else over the fabric, and hashes
// what it gets.
func download(url, want string, plain bool) error {
	transport := httpdialer.Transport(nil)
	if plain {
		transport = http.DefaultTransport.(*http.Transport)
	}
	client := http.Client{Transport: transport}
	defer client.CloseIdleConnections()

	ctx := httptrace.WithClientTrace(context.Background(), &httptrace.ClientTrace{
		GotConn: func(got httptrace.GotConnInfo) { describe(got.Conn) },
	})
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %q", url, response.Status)
	}
	if response.ContentLength < 0 {
		return fmt.Errorf("%s does not say how long it is", url)
	}
	body := make([]byte, response.ContentLength)
	clear(body) // or we would measure how long the kernel takes to find the memory
	start := time.Now()
	if _, err := io.ReadFull(response.Body, body); err != nil {
		return err
	}
	elapsed := time.Since(start)
	hash := sha256.Sum256(body)
	got := hex.EncodeToString(hash[:])
	fmt.Printf("downloaded %d bytes in %v, %.2f GB/s\nSHA-256 %s\n",
		len(body), elapsed.Round(time.Microsecond), float64(len(body))/1e9/elapsed.Seconds(), got)
	if want != "" && got != want {
		return fmt.Errorf("the hash should be %s", want)
	}
	return nil
}

// describe says what the conn really runs over.
func describe(c net.Conn) {
	if conn, ok := c.(*rdmanet.Conn); ok {
		fmt.Println("connected over libfabric provider", conn.Info().Provider)
		return
	}
	fmt.Println("connected over TCP")
}

// both serves a file of random bytes in this process and downloads it in
// another, over TCP and over the fabric.
func both(size int) (err error) {
	dir, err := os.MkdirTemp("", "http")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	sum, err := writeRandom(filepath.Join(dir, "file"), size)
	if err != nil {
		return err
	}

	l, err := listen("127.0.0.1:0")
	if err != nil {
		return err
	}
	server := http.Server{Handler: http.FileServer(http.Dir(dir))}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()

	self, err := os.Executable()
	if err != nil {
		return err
	}
	for _, flags := range [][]string{{"-tcp"}, nil} {
		args := append(flags, "-get", "http://"+l.Addr().String()+"/file", "-sha256", sum)
		client := exec.Command(self, args...)
		client.Stdout, client.Stderr = os.Stdout, os.Stderr
		if err := client.Run(); err != nil {
			return fmt.Errorf("client: %w", err)
		}
	}
	fmt.Println("the hashes are that of the file served")
	if err := server.Shutdown(context.Background()); err != nil {
		return err
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// writeRandom fills a new file with size random bytes and returns their
// SHA-256.
func writeRandom(name string, size int) (sum string, err error) {
	f, err := os.Create(name)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	hash := sha256.New()
	random := rand.NewChaCha8([32]byte{})
	if _, err := io.CopyN(io.MultiWriter(f, hash), random, int64(size)); err != nil {
		return "", err
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}
