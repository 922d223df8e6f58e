package rdmanet_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"time"

	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// TLSConfig protects the handshake, and Authorize decides which peers are let in. The bytes on
// the fabric are clear text all the same: to encrypt them, see the example "TlsAbove".
func ExampleListenConfig_Listen_tls() {
	server, worker, guest := certificate("server"), certificate("worker"), certificate("guest")
	roots := x509.NewCertPool()
	for _, c := range []tls.Certificate{server, worker, guest} {
		roots.AddCert(c.Leaf)
	}
	config := rdmanet.ListenConfig{
		TLSConfig: &tls.Config{
			Certificates: []tls.Certificate{server},
			ClientAuth:   tls.RequireAndVerifyClientCert,
			ClientCAs:    roots,
		},
		Authorize: func(_ context.Context, peer rdmanet.PeerInfo) error {
			if name := peer.TLS.PeerCertificates[0].Subject.CommonName; name != "worker" {
				return fmt.Errorf("no work for %s", name)
			}
			return nil
		},
	}
	l, err := config.Listen(context.Background(), "rdma", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()

	for _, c := range []tls.Certificate{worker, guest} {
		dialer := rdmanet.Dialer{TLSConfig: &tls.Config{
			Certificates: []tls.Certificate{c},
			RootCAs:      roots,
			ServerName:   "server",
		}}
		conn, err := dialer.Dial("rdma", l.Addr().String())
		if err != nil {
			fmt.Println("guest:", errors.Is(err, rdmanet.ErrUnauthorized))
			continue
		}
		fmt.Println("worker: let in")
		defer conn.Close()
	}
	_, err = rdmanet.Dial("rdma", l.Addr().String())
	fmt.Println("without TLS:", errors.Is(err, rdmanet.ErrTLSRequired))
	// Output:
	// worker: let in
	// guest: true
	// without TLS: true
}

// TLS above the conn, as over TCP, encrypts the bytes.
func Example_tlsAbove() {
	cert, roots := certificate("server"), x509.NewCertPool()
	roots.AddCert(cert.Leaf)
	raw, err := rdmanet.Listen("rdma", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	l := tls.NewListener(raw, &tls.Config{Certificates: []tls.Certificate{cert}})
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			log.Fatal(err)
		}
		defer c.Close()
		if _, err := io.WriteString(c, "in secret"); err != nil {
			log.Fatal(err)
		}
	}()

	conn, err := rdmanet.Dial("rdma", l.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	c := tls.Client(conn, &tls.Config{RootCAs: roots, ServerName: "server"})
	defer c.Close()
	text, err := io.ReadAll(c)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s, %s\n", text, tls.VersionName(c.ConnectionState().Version))
	// Output: in secret, TLS 1.3
}

// certificate makes a self-signed certificate that is valid for an hour.
func certificate(name string) tls.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		log.Fatal(err)
	}
	template := x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: name},
		DNSNames:     []string{name},
		NotAfter:     time.Now().Add(time.Hour),
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, key.Public(), key)
	if err != nil {
		log.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		log.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}
