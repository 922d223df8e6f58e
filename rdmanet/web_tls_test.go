package rdmanet_test

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// With TLS above the conns, a client gets in if it has the right certificate. Otherwise it is
// told why not, for which an alert must arrive although the server closes right after it.
func TestTLSAboveClientCertificates(t *testing.T) {
	ours, others := newAuthority(t), newAuthority(t)
	server := &tls.Config{
		Certificates: []tls.Certificate{ours.sign("server", time.Hour)},
		ClientAuth:   tls.RequireAndVerifyClientCert, ClientCAs: ours.pool,
	}
	for name, tt := range map[string]struct {
		cert           tls.Certificate
		roots          *x509.CertPool
		atServer, here string // part of the error on each side
	}{
		"right":               {ours.sign("client", time.Hour), ours.pool, "", ""},
		"missing":             {tls.Certificate{}, ours.pool, "client didn't provide a certificate", "remote error: tls"},
		"wrong authority":     {others.sign("client", time.Hour), ours.pool, "unknown authority", "certificate authority"},
		"expired":             {ours.sign("client", -time.Hour), ours.pool, "expired", "expired certificate"},
		"server not believed": {tls.Certificate{}, others.pool, "bad certificate", "unknown authority"},
	} {
		for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
			t.Run(name+" "+tls.VersionName(version), func(t *testing.T) {
				overEach(t, func(t *testing.T, l *rdmanet.Listener, d *rdmanet.Dialer) {
					result := make(chan error, 1)
					go func() { result <- greetTLS(tls.NewListener(l, server)) }()
					nc, err := d.DialContext(t.Context(), "rdma", l.Addr().String())
					require.NoError(t, err)
					c := tls.Client(nc, &tls.Config{
						RootCAs: tt.roots, ServerName: "127.0.0.1", MaxVersion: version,
						// Unlike one in Certificates, it is sent whichever authorities the server names.
						GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &tt.cert, nil },
					})
					defer c.Close()
					text, err := io.ReadAll(c) // makes the TLS handshake first
					if tt.here == "" {
						require.NoError(t, err)
						assert.Equal(t, "hello client", string(text))
						assert.NoError(t, <-result)
						return
					}
					assert.ErrorContains(t, err, tt.here)
					assert.ErrorContains(t, <-result, tt.atServer)
					assert.Empty(t, text)
				})
			})
		}
	}
}

// greetTLS accepts one conn and greets by the name in the client's certificate.
func greetTLS(l net.Listener) error {
	nc, err := l.Accept()
	if err != nil {
		return err
	}
	defer nc.Close()
	c := nc.(*tls.Conn)
	if err := c.Handshake(); err != nil {
		return err
	}
	_, err = io.WriteString(c, "hello "+c.ConnectionState().PeerCertificates[0].Subject.CommonName)
	return err
}
