package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// tlsFiles are PEM files, and the name in the server's certificate.
type tlsFiles struct {
	cert, key, ca, clientCA, serverName string
}

// dials reports whether there is TLS towards servers.
func (f *tlsFiles) dials() bool { return f.ca != "" || f.cert != "" }

// check reports what makes no sense about the flags of a command that serves a fabric, dials one, or
// both, as its flags listen and to say.
func (f *tlsFiles) check(serves, dials bool, listen, to string) error {
	switch {
	case (f.cert == "") != (f.key == ""):
		return errors.New("--tls-cert and --tls-key go together")
	case (f.ca != "" || f.serverName != "") && !dials:
		return fmt.Errorf("--tls-ca and --tls-server-name are for %s", to)
	case f.serverName != "" && !f.dials():
		return errors.New("--tls-server-name needs --tls-ca or --tls-cert")
	case f.clientCA != "" && (!serves || f.cert == ""):
		return fmt.Errorf("--tls-client-ca needs %s, --tls-cert and --tls-key", listen)
	}
	return nil
}

// server returns what a server needs, nil if there are no files for it.
func (f *tlsFiles) server() (*tls.Config, error) {
	if f.cert == "" {
		return nil, nil
	}
	pair := &keyPair{cert: f.cert, key: f.key}
	if _, err := pair.current(); err != nil {
		return nil, err
	}
	c := &tls.Config{
		MinVersion:     tls.VersionTLS13,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return pair.current() },
	}
	if f.clientCA != "" {
		pool, err := certPool("--tls-client-ca", f.clientCA)
		if err != nil {
			return nil, err
		}
		c.ClientAuth, c.ClientCAs = tls.RequireAndVerifyClientCert, pool
	}
	return c, nil
}

// client returns what a client needs, nil if there are no files for it.
func (f *tlsFiles) client() (*tls.Config, error) {
	if !f.dials() {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS13, ServerName: f.serverName}
	if f.ca != "" {
		pool, err := certPool("--tls-ca", f.ca)
		if err != nil {
			return nil, err
		}
		c.RootCAs = pool
	}
	if f.cert != "" {
		pair := &keyPair{cert: f.cert, key: f.key}
		if _, err := pair.current(); err != nil {
			return nil, err
		}
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return pair.current() }
	}
	return c, nil
}

func certPool(flag, file string) (*x509.CertPool, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s: there is no certificate in %s", flag, file)
	}
	return pool, nil
}

// admission says which clients to let in.
type admission struct {
	networks prefixes
	names    names // in certificates; an empty list stands for all
}

// authorize is ListenConfig.Authorize: its errors are sent to the peer.
func (a *admission) authorize(_ context.Context, peer rdmanet.PeerInfo) error {
	if !a.network(peer.RemoteAddr) {
		return errors.New("clients from this network are not let in")
	}
	if len(a.names) == 0 {
		return nil
	}
	if peer.TLS == nil || len(peer.TLS.PeerCertificates) == 0 {
		return errors.New("the client has no certificate")
	}
	has := certificateNames(peer.TLS.PeerCertificates[0])
	if !slices.ContainsFunc(has, func(name string) bool { return slices.Contains(a.names, name) }) {
		return fmt.Errorf("no name in the client's certificate is let in: %s", listNames(has))
	}
	return nil
}

// listNames lists the first few names.
func listNames(names []string) string {
	const most = 8
	if len(names) == 0 {
		return "it has none"
	}
	texts := make([]string, 0, most)
	for _, name := range names[:min(len(names), most)] {
		texts = append(texts, strconv.Quote(name))
	}
	text := "it has " + strings.Join(texts, ", ")
	if more := len(names) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

func certificateNames(leaf *x509.Certificate) []string {
	names := slices.Clone(leaf.DNSNames)
	if name := leaf.Subject.CommonName; !slices.Contains(names, name) {
		names = slices.Insert(names, 0, name)
	}
	for _, uri := range leaf.URIs {
		names = append(names, uri.String())
	}
	return slices.DeleteFunc(names, func(name string) bool { return name == "" })
}

// network reports whether conns from an address are let in.
func (a *admission) network(from net.Addr) bool {
	if len(a.networks) == 0 {
		return true
	}
	at, ok := addrPort(from)
	return ok && a.networks.contain(at.Addr())
}

// addrPort works for the addresses of TCP and of a fabric's control connection.
func addrPort(a net.Addr) (netip.AddrPort, bool) {
	if a, ok := a.(interface{ AddrPort() netip.AddrPort }); ok {
		return a.AddrPort(), a.AddrPort().IsValid()
	}
	return netip.AddrPort{}, false
}
