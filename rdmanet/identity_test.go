package rdmanet_test

import (
	"crypto/tls"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
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
	assert.EqualValues(t, framing.MaxVersion, c.Info().Version)
	assert.EqualValues(t, framing.MaxVersion, s.Info().Version)
}

// TestOtherBuilds: an older and a newer build use a version that both of them know, whichever
// of them dials.
func TestOtherBuilds(t *testing.T) {
	for _, tt := range []struct {
		dialer, listener [2]uint8
		want             uint8 // 0: none
		text             string
	}{
		{[2]uint8{1, 2}, [2]uint8{1, 1}, 1, ""},
		{[2]uint8{1, 1}, [2]uint8{1, 2}, 1, ""},
		{[2]uint8{1, 2}, [2]uint8{2, 3}, 2, ""},
		{[2]uint8{2, 2}, [2]uint8{1, 1}, 0, "the listener speaks 1 to 1, the dialer 2 to 2"},
		{[2]uint8{1, 1}, [2]uint8{2, 2}, 0, "the listener speaks 2 to 2, the dialer 1 to 1"},
	} {
		t.Run(fmt.Sprint(tt.dialer, tt.listener), func(t *testing.T) {
			n := simfabric.New(simfabric.Config{Personality: simfabric.TCP()})
			here, there := rdmanet.NewTransport(n), rdmanet.NewTransport(n)
			rdmatest.Cleanly(t, here)
			defer there.Close()
			here.Speak(tt.dialer[0], tt.dialer[1], 0b0110|1<<63)
			there.Speak(tt.listener[0], tt.listener[1], 0b0011|1<<62)
			l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there})
			d := &rdmanet.Dialer{Transport: here}
			if tt.want == 0 {
				_, err := d.Dial("rdma", l.Addr().String())
				require.ErrorIs(t, err, rdmanet.ErrVersion)
				assert.ErrorContains(t, err, tt.text)
				rdmatest.Eventually(t, func() bool { return there.Stats().HandshakeFailures["version"] == 1 }, "counted")
				return
			}
			c, s := rdmatest.Meet(t, d, l)
			rdmatest.Echo(t, c, s)
			for _, info := range []rdmanet.ConnInfo{c.Info(), s.Info()} {
				assert.Equal(t, tt.want, info.Version)
				assert.EqualValues(t, 0b0010, info.Features, "what both have")
			}
			rdmatest.CloseAll(t, c, s)
		})
	}
}
