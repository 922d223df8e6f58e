package rdmanet_test

import (
	"crypto/tls"
	"crypto/x509"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// certificates are a server's for 127.0.0.1 and what trusts them.
func certificates(t *testing.T) (server, client *tls.Config) {
	t.Helper()
	s := httptest.NewTLSServer(nil)
	defer s.Close()
	pool := x509.NewCertPool()
	pool.AddCert(s.Certificate())
	return &tls.Config{Certificates: s.TLS.Certificates}, &tls.Config{RootCAs: pool}
}

func TestRendezvousTLS(t *testing.T) {
	server, client := certificates(t)
	tr := simulated(t, simfabric.TCP())
	seen := make(chan bool, 1)
	secure := listen(t, rdmanet.ListenConfig{Transport: tr, TLSConfig: server, Authorize: func(p rdmanet.PeerInfo) error {
		seen <- p.TLS != nil && p.TLS.HandshakeComplete
		return nil
	}})
	clear := listen(t, rdmanet.ListenConfig{Transport: tr})

	d := &rdmanet.Dialer{Transport: tr, TLSConfig: client}
	c, s := meet(t, d, secure)
	assert.True(t, <-seen)
	echo(t, c, s)
	c2, s2 := meet(t, d, secure)
	assert.True(t, c2.Info().Reused)
	closeAll(t, c, s, c2, s2)

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
