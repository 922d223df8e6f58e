// Tls runs crypto/tls on top of conns over a fabric: the bytes cross it encrypted. The server makes
// its own certificate, which is valid for an hour.
//
// In one command, as two processes:
//
//	go run ./examples/tls
//
// In two terminals:
//
//	go run ./examples/tls -serve :8080 -cert cert.pem
//	go run ./examples/tls -dial localhost:8080 -cert cert.pem
//
// RDMANET_PROVIDERS='tcp;ofi_rxm' in the environment chooses the provider.
package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/seed202c38ff/fabricnet/rdmanet"
)

func main() {
	log.SetFlags(0)
	address := flag.String("serve", "", "serve on this `address`, such as :8080")
	server := flag.String("dial", "", "dial the server at this `address`, such as localhost:8080")
	cert := flag.String("cert", "cert.pem", "the `file` that the server writes its certificate to, and the client trusts")
	flag.Parse()

	var err error
	switch {
	case *address != "":
		err = serve(*address, *cert)
	case *server != "":
		err = greet(*server, *cert)
	default:
		err = both()
	}
	if err != nil {
		log.Fatal(err)
	}
}

// listen runs TLS on top of the fabric's conns, as it would on top of TCP's.
func listen(address, certFile string) (net.Listener, error) {
	cert, err := newCertificate(certFile)
	if err != nil {
		return nil, err
	}
	l, err := rdmanet.Listen("rdma", address)
	if err != nil {
		return nil, err
	}
	return tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{cert}}), nil
}

func serve(address, certFile string) error {
	l, err := listen(address, certFile)
	if err != nil {
		return err
	}
	fmt.Println("serving on", l.Addr())
	return echoAll(l)
}

// echoAll sends back what each client sends, until l is closed.
func echoAll(l net.Listener) error {
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			_, err := io.Copy(c, c)
			if err := errors.Join(err, c.Close()); err != nil {
				log.Print("server: ", err)
			}
		}()
	}
}

// greet sends the server a line to echo, and checks who the server is.
func greet(address, certFile string) (err error) {
	text, err := os.ReadFile(certFile)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(text) {
		return fmt.Errorf("%s holds no certificate", certFile)
	}
	raw, err := rdmanet.Dial("rdma", address)
	if err != nil {
		return err
	}
	c := tls.Client(raw, &tls.Config{RootCAs: roots, ServerName: "localhost"})
	defer func() { err = errors.Join(err, c.Close()) }()

	const line = "hello over TLS over the fabric"
	if _, err := io.WriteString(c, line); err != nil {
		return err
	}
	// Say that no more will come: the server then closes its side, too.
	if err := c.CloseWrite(); err != nil {
		return err
	}
	got, err := io.ReadAll(c)
	if err != nil {
		return err
	}
	fmt.Printf("%s: %q\n", tls.VersionName(c.ConnectionState().Version), got)
	return nil
}

// newCertificate makes a certificate for localhost and writes it to file. The
// key stays in this process.
func newCertificate(file string) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := x509.Certificate{
		SerialNumber: big.NewInt(1),
		DNSNames:     []string{"localhost"},
		NotBefore:    time.Now().Add(-time.Minute),
		NotAfter:     time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, err
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if err := os.WriteFile(file, text, 0o644); err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

// both serves in this process and dials from another.
func both() (err error) {
	dir, err := os.MkdirTemp("", "tls")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	certFile := filepath.Join(dir, "cert.pem")
	l, err := listen("127.0.0.1:0", certFile)
	if err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() { served <- echoAll(l) }()

	self, err := os.Executable()
	if err != nil {
		return err
	}
	client := exec.Command(self, "-dial", l.Addr().String(), "-cert", certFile)
	client.Stdout, client.Stderr = os.Stdout, os.Stderr
	if err := client.Run(); err != nil {
		return fmt.Errorf("client: %w", err)
	}
	if err := l.Close(); err != nil {
		return err
	}
	if err := <-served; !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}
