package bootstrap

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// newCertificate makes a self-signed certificate for name and a pool that
// trusts it.
func newCertificate(t *testing.T, name string) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	leaf, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, pool
}

func TestTLS(t *testing.T) {
	serverCert, serverPool := newCertificate(t, "server")
	clientCert, clientPool := newCertificate(t, "client")
	server := &tls.Config{Certificates: []tls.Certificate{serverCert}}
	mutual := &tls.Config{
		Certificates: []tls.Certificate{serverCert}, ClientCAs: clientPool, ClientAuth: tls.RequireAndVerifyClientCert,
	}
	client := &tls.Config{RootCAs: serverPool, ServerName: "server"}
	known := &tls.Config{RootCAs: serverPool, ServerName: "server", Certificates: []tls.Certificate{clientCert}}
	tests := []struct {
		name                 string
		dialer, listener     *tls.Config
		dialErr, listenerErr error  // nil: ErrTLSHandshake, if there are texts
		dialText, listenText string // parts of the texts
	}{
		{name: "server only", dialer: client, listener: server},
		{name: "mutual", dialer: known, listener: mutual},
		{name: "the listener requires it", listener: server, dialErr: ErrTLSRequired, listenerErr: ErrTLSRequired},
		{name: "the listener has none", dialer: client, dialErr: ErrTLSMismatch, listenerErr: ErrTLSMismatch},
		{name: "a dialer without certificate", dialer: client, listener: mutual,
			dialText: "certificate required", listenText: "didn't provide a certificate"},
		{name: "a dialer with a certificate of another", listener: mutual,
			dialer:   &tls.Config{RootCAs: serverPool, ServerName: "server", Certificates: []tls.Certificate{serverCert}},
			dialText: "remote error: tls", listenText: "TLS handshake with the dialer"},
		{name: "an unknown authority", dialer: &tls.Config{RootCAs: clientPool, ServerName: "server"}, listener: server,
			dialText: "unknown authority", listenText: "bad certificate"},
		{name: "another server", dialer: &tls.Config{RootCAs: serverPool, ServerName: "elsewhere"}, listener: server,
			dialText: "not elsewhere", listenText: "bad certificate"},
		{name: "no version in common", listener: server, dialText: "protocol version", listenText: "TLS handshake with the dialer",
			dialer: &tls.Config{RootCAs: serverPool, ServerName: "server", MaxVersion: tls.VersionTLS11, MinVersion: tls.VersionTLS10}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d, l := newBinder(offer("tcp")), newBinder(offer("tcp"))
			var seen []*x509.Certificate
			l.authorised = func(_ context.Context, peer *Peer) {
				if peer.TLS != nil {
					seen = peer.TLS.PeerCertificates
				}
			}
			dnc, lnc := loopback(t)
			dr, lr := meet(t, dnc, lnc, Config{TLS: tt.dialer}, Config{TLS: tt.listener}, d, l)
			if tt.dialErr != nil || tt.dialText != "" {
				assert.ErrorContains(t, dr.err, tt.dialText)
				assert.ErrorContains(t, lr.err, tt.listenText)
				if tt.dialErr == nil {
					tt.dialErr, tt.listenerErr = ErrTLSHandshake, ErrTLSHandshake
				}
				assert.ErrorIs(t, dr.err, tt.dialErr)
				assert.ErrorIs(t, lr.err, tt.listenerErr)
				return
			}
			require.NoError(t, dr.err)
			require.NoError(t, lr.err)
			state := dr.s.Peer().TLS
			require.NotNil(t, state)
			assert.True(t, state.HandshakeComplete)
			if tt.listener == mutual {
				require.Len(t, seen, 1)
				assert.Equal(t, "client", seen[0].Subject.CommonName)
			}
			signalsOverTLS(t, dr.s, lr.s)
		})
	}
}

func signalsOverTLS(t *testing.T, d, l *Session) {
	t.Helper()
	dh, lh := newRecorder(), newRecorder()
	d.Start(dh)
	l.Start(lh)
	require.NoError(t, d.Close())
	assert.ErrorIs(t, lh.wait(t), ErrGoodbye)
	assert.ErrorIs(t, dh.wait(t), net.ErrClosed)
}

// TestRejectOverTLS: a refused dialer is told the reason over TLS, not in clear text.
func TestRejectOverTLS(t *testing.T) {
	cert, pool := newCertificate(t, "server")
	l := newBinder(offer("tcp"))
	l.authErr = errFake
	dnc, lnc := loopback(t)
	dr, lr := meet(t, dnc, lnc, Config{TLS: &tls.Config{RootCAs: pool, ServerName: "server"}},
		Config{TLS: &tls.Config{Certificates: []tls.Certificate{cert}}}, newBinder(offer("tcp")), l)
	assert.ErrorIs(t, dr.err, ErrUnauthorized)
	assert.ErrorContains(t, dr.err, errFake.Error())
	assert.ErrorIs(t, lr.err, ErrUnauthorized)
}

// TestALPN: if both sides name a protocol, TLS for another one is refused. A side that names
// none is let in.
func TestALPN(t *testing.T) {
	cert, pool := newCertificate(t, "server")
	const none = "no application protocol" // what crypto/tls says at the client
	chosen := func(protos ...string) func(*tls.ClientHelloInfo) (*tls.Config, error) {
		c := &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: protos}
		return func(*tls.ClientHelloInfo) (*tls.Config, error) { return c, nil }
	}
	nothing := func(*tls.ClientHelloInfo) (*tls.Config, error) { return nil, nil }
	refused := func(*tls.ClientHelloInfo) (*tls.Config, error) { return nil, errFake }
	for name, tt := range map[string]struct {
		dialer   []string // nil: ClientTLS
		listener []string // likewise
		choose   func(*tls.ClientHelloInfo) (*tls.Config, error)
		want     string // what was agreed on
		text     string // of the dialer's error
	}{
		"both":                            {want: ALPN},
		"a dialer without":                {dialer: []string{}},
		"a dialer of another protocol":    {dialer: []string{"h2"}, text: none},
		"a dialer of several":             {dialer: []string{"h2", ALPN}, want: ALPN},
		"a listener without":              {listener: []string{}},
		"a listener of another protocol":  {listener: []string{"h2"}, text: none},
		"a chosen configuration":          {choose: chosen(), want: ALPN},
		"a chosen one of another":         {choose: chosen("h2"), want: ALPN},
		"none chosen":                     {choose: nothing, want: ALPN},
		"a choice that fails":             {choose: refused, text: "internal error"},
		"a chosen one, and other clients": {choose: chosen("h2"), dialer: []string{"h2"}, text: none},
	} {
		t.Run(name, func(t *testing.T) {
			users := &tls.Config{RootCAs: pool, ServerName: "server", NextProtos: tt.dialer}
			dialer := users
			if tt.dialer == nil {
				users = &tls.Config{RootCAs: pool, NextProtos: []string{"http/1.1"}}
				dialer = ClientTLS(users, "server")
				assert.Equal(t, []string{"http/1.1"}, users.NextProtos, "a copy")
				assert.Empty(t, users.ServerName)
			}
			users = &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: tt.listener, GetConfigForClient: tt.choose}
			listener := users
			if tt.listener == nil {
				listener = ServerTLS(users)
				assert.Empty(t, users.NextProtos, "a copy")
			}
			dnc, lnc := loopback(t)
			dr, lr := meet(t, dnc, lnc, Config{TLS: dialer}, Config{TLS: listener}, newBinder(offer("tcp")), newBinder(offer("tcp")))
			if tt.text != "" {
				assert.ErrorContains(t, dr.err, tt.text)
				assert.ErrorContains(t, lr.err, "TLS handshake with the dialer")
				return
			}
			require.NoError(t, dr.err)
			require.NoError(t, lr.err)
			for _, s := range []*Session{dr.s, lr.s} {
				state := s.Peer().TLS
				require.NotNil(t, state)
				assert.Equal(t, tt.want, state.NegotiatedProtocol)
			}
		})
	}
	assert.Nil(t, ServerTLS(nil))
}
