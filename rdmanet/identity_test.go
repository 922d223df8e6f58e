package rdmanet_test

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// TestPeerTLS: each side knows the identity of the other, also on conns that reuse the control
// connection, and after Close.
func TestPeerTLS(t *testing.T) {
	a := newAuthority(t)
	server := &tls.Config{
		Certificates: []tls.Certificate{a.sign("server", time.Hour)}, NextProtos: []string{"h2"},
		ClientCAs: a.pool, ClientAuth: tls.RequireAndVerifyClientCert,
	}
	client := &tls.Config{RootCAs: a.pool, Certificates: []tls.Certificate{a.sign("client", time.Hour)}, NextProtos: []string{"http/1.1"}}
	tr := simulated(t, simfabric.TCP())
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr, TLSConfig: server})
	d := &rdmanet.Dialer{Transport: tr, TLSConfig: client}
	c, s := rdmatest.Meet(t, d, l)
	c2, s2 := rdmatest.Meet(t, d, l)
	assert.True(t, c2.Info().Reused, "the user's pointer counts, not the copy")
	check := func() {
		for conn, name := range map[*rdmanet.Conn]string{c: "server", s: "client", c2: "server", s2: "client"} {
			state, ok := conn.PeerTLS()
			require.True(t, ok)
			assert.True(t, state.HandshakeComplete)
			require.NotEmpty(t, state.PeerCertificates)
			assert.Equal(t, name, state.PeerCertificates[0].Subject.CommonName)
			assert.NotEmpty(t, state.VerifiedChains)
			assert.Equal(t, "fabricnet/1", state.NegotiatedProtocol)
			info := conn.Info()
			require.NotNil(t, info.TLS)
			assert.Equal(t, state.PeerCertificates, info.TLS.PeerCertificates)
			info.TLS.PeerCertificates = nil // it is a copy
		}
	}
	check()
	rdmatest.CloseAll(t, c, s, c2, s2)
	check()
	assert.Equal(t, []string{"h2"}, server.NextProtos, "the user's is left alone")
	assert.Equal(t, []string{"http/1.1"}, client.NextProtos)
	assert.Empty(t, client.ServerName)
}

func TestPeerTLSWithout(t *testing.T) {
	tr := simulated(t, simfabric.TCP())
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr, AcceptTCP: true})
	c, s := rdmatest.Meet(t, &rdmanet.Dialer{Transport: tr}, l)
	defer rdmatest.CloseAll(t, c, s)
	pc, err := (&rdmanet.Dialer{Transport: tr, Providers: []string{"efa"}, Fallback: rdmanet.FallbackTCP}).Dial("rdma", l.Addr().String())
	require.NoError(t, err)
	_, err = pc.Write([]byte("x"))
	require.NoError(t, err)
	ps := rdmatest.AcceptPlain(t, l)
	defer rdmatest.CloseAll(t, pc, ps)
	for _, a := range append(addrs(pc), addrs(ps)...) {
		info, ok := rdmanet.InfoOf(a)
		assert.True(t, ok)
		assert.Nil(t, info.TLS)
	}
	for _, conn := range []*rdmanet.Conn{c, s} {
		state, ok := conn.PeerTLS()
		assert.False(t, ok)
		assert.Zero(t, state)
		assert.Nil(t, conn.Info().TLS)
	}
}

// TestOtherBuilds: a build that speaks another version of the protocol is refused, whichever of the two
// dials, and the error names both versions.
func TestOtherBuilds(t *testing.T) {
	other := (&framing.Preamble{Version: framing.Version + 1}).Append(nil)
	text := fmt.Sprintf("%d here, %d at the ", framing.Version, framing.Version+1)
	l, err := net.Listen("tcp", testenv.Address())
	require.NoError(t, err)
	defer l.Close()
	go rdmatest.Serve(l, func(c net.Conn) {
		defer c.Close()
		_, _ = c.Write(other)
		_, _ = io.Copy(io.Discard, c)
	})
	_, err = (&rdmanet.Dialer{Transport: simulated(t, simfabric.TCP())}).Dial("rdma", l.Addr().String())
	require.ErrorIs(t, err, rdmanet.ErrVersion)
	assert.ErrorContains(t, err, text+"listener")

	tr := simulated(t, simfabric.TCP())
	c, err := net.Dial("tcp", rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr}).Addr().String())
	require.NoError(t, err)
	defer c.Close()
	_, err = c.Write(other)
	require.NoError(t, err)
	answer, err := io.ReadAll(c)
	require.NoError(t, err)
	assert.Equal(t, (&framing.Preamble{Version: framing.Version}).Append(nil), answer)
	rdmatest.Eventually(t, func() bool { return tr.Stats().HandshakeFailures["version"] == 1 }, "counted")
}
