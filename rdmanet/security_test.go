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
	"math/big"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// authority signs certificates.
type authority struct {
	t    *testing.T
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	pool *x509.CertPool
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t, pool: x509.NewCertPool()}
	made := a.sign("authority", time.Hour)
	a.key, a.cert = made.PrivateKey.(*ecdsa.PrivateKey), made.Leaf
	a.pool.AddCert(a.cert)
	return a
}

// sign makes a certificate for name, for 127.0.0.1 and for hosts that is valid for that long from
// now on.
func (a *authority) sign(name string, valid time.Duration, hosts ...string) tls.Certificate {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(a.t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: hosts,
		NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(valid),
		IsCA: a.key == nil, BasicConstraintsValid: true,
	}
	parent, signer := a.cert, a.key
	if a.key == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	require.NoError(a.t, err)
	leaf, err := x509.ParseCertificate(der)
	require.NoError(a.t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

// TestWhoGetsIn: a dialer that the listener does not want, or that wants another listener,
// is told why it does not get in. Nothing makes it fall back to TCP, which has no TLS.
func TestWhoGetsIn(t *testing.T) {
	ours, others := newAuthority(t), newAuthority(t)
	server := func(a *authority, valid time.Duration) *tls.Config {
		return &tls.Config{Certificates: []tls.Certificate{a.sign("server", valid)}}
	}
	mutual := server(ours, time.Hour)
	mutual.ClientCAs, mutual.ClientAuth = ours.pool, tls.RequireAndVerifyClientCert
	client := func(certs ...tls.Certificate) *tls.Config {
		return &tls.Config{RootCAs: ours.pool, Certificates: certs}
	}
	var unknown x509.UnknownAuthorityError
	var invalid x509.CertificateInvalidError
	var elsewhere x509.HostnameError
	for name, tt := range map[string]struct {
		dialer, listener *tls.Config
		as               any    // the error's type
		text             string // of it
		counted          string // how the listener counts it
	}{
		"server":                    {client(), server(ours, time.Hour), nil, "", ""},
		"server of others":          {client(), server(others, time.Hour), &unknown, "unknown authority", "tls handshake"},
		"expired server":            {client(), server(ours, -time.Hour), &invalid, "certificate has expired", "tls handshake"},
		"another server":            {&tls.Config{RootCAs: ours.pool, ServerName: "127.0.0.2"}, server(ours, time.Hour), &elsewhere, "127.0.0.2", "tls handshake"},
		"plain dialer":              {nil, server(ours, time.Hour), nil, rdmanet.ErrTLSRequired.Error(), "tls required"},
		"plain listener":            {client(), nil, nil, rdmanet.ErrTLSMismatch.Error(), "tls mismatch"},
		"client":                    {client(ours.sign("client", time.Hour)), mutual, nil, "", ""},
		"client without":            {client(), mutual, nil, "certificate required", "tls handshake"},
		"client of others":          {client(others.sign("client", time.Hour)), mutual, nil, "unknown certificate authority", "tls handshake"},
		"expired client":            {client(ours.sign("client", -time.Hour)), mutual, nil, "expired certificate", "tls handshake"},
		"plain dialer, mutual":      {nil, mutual, nil, rdmanet.ErrTLSRequired.Error(), "tls required"},
		"client that is turned off": {client(ours.sign("guest", time.Hour)), mutual, nil, "not authorised by the listener: no guests", "unauthorized"},
	} {
		t.Run(name, func(t *testing.T) {
			n := simfabric.New(simfabric.Config{Personality: simfabric.TCP()})
			here, there := rdmanet.NewTransport(n), rdmanet.NewTransport(n)
			rdmatest.Cleanly(t, here)
			defer there.Close()
			l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there, TLSConfig: tt.listener, Authorize: func(_ context.Context, p rdmanet.PeerInfo) error {
				if p.TLS != nil && len(p.TLS.PeerCertificates) > 0 && p.TLS.PeerCertificates[0].Subject.CommonName == "guest" {
					return errors.New("no guests")
				}
				return nil
			}})
			d := &rdmanet.Dialer{Transport: here, TLSConfig: tt.dialer, Fallback: rdmanet.FallbackTCP, Timeout: rdmatest.Patience}
			if tt.text == "" {
				c, s := rdmatest.Meet(t, d, l)
				rdmatest.Echo(t, c, s)
				rdmatest.CloseAll(t, c, s)
				return
			}
			_, err := d.Dial("rdma", l.Addr().String())
			var op *net.OpError
			require.ErrorAs(t, err, &op)
			assert.Equal(t, "dial", op.Op)
			assert.ErrorContains(t, err, tt.text)
			if tt.as != nil {
				assert.ErrorAs(t, err, tt.as)
			}
			assert.Equal(t, tt.counted == "tls handshake", errors.Is(err, rdmanet.ErrTLSHandshake))
			rdmatest.Eventually(t, func() bool { return there.Stats().HandshakeFailures[tt.counted] == 1 }, "counted")
			assert.Zero(t, here.Stats().Peers+there.Stats().Peers)
			assert.Empty(t, here.Stats().Fallbacks)
		})
	}
}
