package rdmanet_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// certificates returns the configuration of a server with a certificate for 127.0.0.1, and of a client
// that trusts it.
func certificates(t *testing.T) (server, client *tls.Config) {
	t.Helper()
	s := httptest.NewTLSServer(nil)
	defer s.Close()
	pool := x509.NewCertPool()
	pool.AddCert(s.Certificate())
	return &tls.Config{Certificates: s.TLS.Certificates}, &tls.Config{RootCAs: pool}
}

func TestHandshakeTLS(t *testing.T) {
	server, client := certificates(t)
	tr := simulated(t, simfabric.TCP())
	seen := make(chan bool, 1)
	secure := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr, TLSConfig: server, Authorize: func(_ context.Context, p rdmanet.PeerInfo) error {
		seen <- p.TLS != nil && p.TLS.HandshakeComplete
		return nil
	}})
	clear := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr})

	d := &rdmanet.Dialer{Transport: tr, TLSConfig: client}
	c, s := rdmatest.Meet(t, d, secure)
	assert.True(t, <-seen)
	rdmatest.Echo(t, c, s)
	c2, s2 := rdmatest.Meet(t, d, secure)
	assert.True(t, c2.Info().Reused)
	rdmatest.CloseAll(t, c, s, c2, s2)

	for name, tt := range map[string]struct {
		tls  *tls.Config
		l    *rdmanet.Listener
		want error
	}{
		"required":   {nil, secure, rdmanet.ErrTLSRequired},
		"not wanted": {client, clear, rdmanet.ErrTLSMismatch},
	} {
		t.Run(name, func(t *testing.T) {
			d := rdmanet.Dialer{Transport: tr, TLSConfig: tt.tls, Fallback: rdmanet.FallbackTCP, AllowInsecureFallback: true}
			_, err := d.Dial("rdma", tt.l.Addr().String())
			require.ErrorIs(t, err, tt.want)
		})
	}
	_, err := (&rdmanet.Dialer{Transport: tr, TLSConfig: new(tls.Config)}).Dial("rdma", secure.Addr().String())
	var unknown x509.UnknownAuthorityError
	assert.ErrorAs(t, err, &unknown)
}

// A listener that wants certificates lets in only clients that have one.
func TestMutualTLS(t *testing.T) {
	server, client := certificates(t)
	server.ClientAuth, server.ClientCAs = tls.RequireAnyClientCert, client.RootCAs
	tr := simulated(t, simfabric.TCP())
	names := make(chan int, 1)
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr, TLSConfig: server, Authorize: func(_ context.Context, p rdmanet.PeerInfo) error {
		names <- len(p.TLS.PeerCertificates)
		return nil
	}})
	_, err := (&rdmanet.Dialer{Transport: tr, TLSConfig: client}).Dial("rdma", l.Addr().String())
	require.ErrorContains(t, err, "certificate required")
	assert.Empty(t, names, "not even asked about")
	rdmatest.Eventually(t, func() bool { return tr.Stats().HandshakeFailures["tls handshake"] == 2 }, "both sides know")
	assert.Zero(t, tr.Stats().Peers)

	known := client.Clone()
	known.Certificates = server.Certificates
	c, s := rdmatest.Meet(t, &rdmanet.Dialer{Transport: tr, TLSConfig: known}, l)
	assert.Equal(t, 1, <-names)
	rdmatest.Echo(t, c, s)
	rdmatest.CloseAll(t, c, s)

	_, err = (&rdmanet.Dialer{Transport: tr, TLSConfig: client}).Dial("rdma", l.Addr().String())
	require.ErrorContains(t, err, "certificate required", "not over the peer that another's certificate opened")
}

// Which identities are believed depends on the TLS configuration, so each configuration has a peer of
// its own.
func TestTLSConfigsDoNotSharePeers(t *testing.T) {
	server, client := certificates(t)
	tr := simulated(t, simfabric.TCP())
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr, TLSConfig: server})
	other := client.Clone()
	for _, tt := range []struct {
		config *tls.Config
		reused bool
	}{{client, false}, {other, false}, {client, true}, {other, true}} {
		c, s := rdmatest.Meet(t, &rdmanet.Dialer{Transport: tr, TLSConfig: tt.config}, l)
		assert.Equal(t, tt.reused, c.Info().Reused)
		rdmatest.CloseAll(t, c, s)
	}
	assert.Equal(t, 4, tr.Stats().Peers, "two, seen from both sides")
}
