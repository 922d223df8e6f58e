package grpcdialer_test

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
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/credentials/local"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// serverName is the name in the servers' certificates, besides their address.
const serverName = "storage.example"

// pki is an authority with one certificate for all servers and one for all
// clients.
type pki struct {
	roots            *x509.CertPool
	forServer, forMe tls.Certificate
}

func newPKI(t *testing.T) pki {
	t.Helper()
	authority := &x509.Certificate{
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, Subject: pkix.Name{CommonName: "authority"},
	}
	root, rootKey := sign(t, authority, authority, nil)
	p := pki{roots: x509.NewCertPool()}
	p.roots.AddCert(root)
	for name, to := range map[string]*tls.Certificate{"server": &p.forServer, "client": &p.forMe} {
		leaf, key := sign(t, &x509.Certificate{
			Subject: pkix.Name{CommonName: name}, KeyUsage: x509.KeyUsageDigitalSignature,
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
			DNSNames:    []string{serverName}, IPAddresses: []net.IP{net.ParseIP(testenv.Host())},
		}, root, rootKey)
		*to = tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key}
	}
	return p
}

// sign makes a key and a certificate for it. For a self-signed one, by is template and byKey
// is nil.
func sign(t *testing.T, template, by *x509.Certificate, byKey *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	if byKey == nil {
		byKey = key
	}
	template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 64))
	require.NoError(t, err)
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, template, by, key.Public(), byKey)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return cert, key
}

func (p pki) server() *tls.Config { return &tls.Config{Certificates: []tls.Certificate{p.forServer}} }

// mutual is the config of a server that demands its clients' certificates.
func (p pki) mutual() *tls.Config {
	c := p.server()
	c.ClientAuth, c.ClientCAs = tls.RequireAndVerifyClientCert, p.roots
	return c
}

func (p pki) client() *tls.Config { return &tls.Config{RootCAs: p.roots} }

// known is the config of a client that has a certificate.
func (p pki) known() *tls.Config {
	c := p.client()
	c.Certificates = []tls.Certificate{p.forMe}
	return c
}

// identity answers with the common name of the client's certificate.
type identity struct{ echo }

func (identity) UnaryCall(ctx context.Context, _ *grpc_testing.SimpleRequest) (*grpc_testing.SimpleResponse, error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil, status.Error(codes.Internal, "no peer")
	}
	out := new(grpc_testing.SimpleResponse)
	if info, ok := p.AuthInfo.(credentials.TLSInfo); ok && len(info.State.PeerCertificates) > 0 {
		out.Username = info.State.PeerCertificates[0].Subject.CommonName
	}
	return out, nil
}

// strict is a server's credentials, which keep the error of the first handshake that fails.
type strict struct {
	credentials.TransportCredentials
	failed chan error
}

func (s strict) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	out, info, err := s.TransportCredentials.ServerHandshake(c)
	if err != nil {
		select {
		case s.failed <- err:
		default:
		}
	}
	return out, info, err
}

func TestTLSCredentials(t *testing.T) {
	ours, others := newPKI(t), newPKI(t)
	stranger := ours.client()
	stranger.Certificates = others.known().Certificates
	for _, tt := range []struct {
		name           string
		server, client *tls.Config // nil is clear text
		authority      string
		username       string
		// What the side that refuses says if a call fails. In TLS 1.3 a server checks the
		// client's certificate after the client has finished its handshake: the error that the
		// client gets depends on whether it writes or reads first.
		clientSays, serverSays string
	}{
		{name: "TLS", server: ours.server(), client: ours.client()},
		{name: "TLS by name", server: ours.server(), client: ours.client(), authority: serverName},
		{name: "TLS by another name", server: ours.server(), client: ours.client(), authority: "wrong.example",
			clientSays: "certificate is valid for"},
		{name: "an unknown authority", server: ours.server(), client: others.client(), clientSays: "unknown authority"},
		{name: "client in clear text", server: ours.server(), serverSays: "does not look like a TLS handshake"},
		{name: "server in clear text", client: ours.client(), clientSays: "does not look like a TLS handshake"},
		{name: "mutual TLS", server: ours.mutual(), client: ours.known(), username: "client"},
		{name: "mutual TLS without a certificate", server: ours.mutual(), client: ours.client(),
			serverSays: "didn't provide a certificate"},
		{name: "mutual TLS with another authority's certificate", server: ours.mutual(), client: stranger,
			serverSays: "unknown authority"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			onEach(t, func(t *testing.T, l net.Listener, d *rdmanet.Dialer) {
				server := strict{credentialsOf(tt.server), make(chan error, 1)}
				serveAs(t, l, identity{}, grpc.Creds(server))
				opts := []grpc.DialOption{grpc.WithTransportCredentials(credentialsOf(tt.client))}
				if tt.authority != "" {
					opts = append(opts, grpc.WithAuthority(tt.authority))
				}
				var p peer.Peer
				got, err := client(t, "rdma://"+l.Addr().String(), d, opts...).UnaryCall(callContext(t), request(1), grpc.Peer(&p))
				if tt.clientSays+tt.serverSays != "" {
					assert.Equal(t, codes.Unavailable, status.Code(err))
					assert.ErrorContains(t, err, tt.clientSays)
					if tt.serverSays != "" {
						assert.ErrorContains(t, <-server.failed, tt.serverSays)
					}
					return
				}
				require.NoError(t, err)
				assert.Equal(t, tt.username, got.GetUsername())
				info, ok := p.AuthInfo.(credentials.TLSInfo)
				require.True(t, ok)
				assert.Equal(t, credentials.PrivacyAndIntegrity, info.SecurityLevel)
				assert.Equal(t, d.Providers[0], whose(t, &p).Provider)
			})
		})
	}
}

func credentialsOf(c *tls.Config) credentials.TransportCredentials {
	if c == nil {
		return insecure.NewCredentials()
	}
	return credentials.NewTLS(c)
}

// gRPC's local credentials look at the text of an address.
func TestLocalCredentials(t *testing.T) {
	onEach(t, func(t *testing.T, l net.Listener, d *rdmanet.Dialer) {
		serve(t, l, grpc.Creds(local.NewCredentials()))
		var p peer.Peer
		_, err := client(t, "rdma://"+l.Addr().String(), d, grpc.WithTransportCredentials(local.NewCredentials())).
			UnaryCall(callContext(t), request(1), grpc.Peer(&p))
		if !net.ParseIP(testenv.Host()).IsLoopback() {
			assert.ErrorContains(t, err, "non-local address")
			return
		}
		require.NoError(t, err)
		assert.Equal(t, "local", p.AuthInfo.AuthType())
	})
}

// The TLS of the control connection is not gRPC's: peer.AuthInfo comes from gRPC's credentials, and
// the peer's certificates are in the ConnInfo.
func TestControlTLSIsNoAuthInfo(t *testing.T) {
	keys := newPKI(t)
	onEach(t, func(t *testing.T, _ net.Listener, d *rdmanet.Dialer) {
		lc := rdmanet.ListenConfig{Providers: d.Providers, Transport: d.Transport, TLSConfig: keys.mutual()}
		l, err := lc.Listen(t.Context(), "rdma", testenv.Address())
		require.NoError(t, err)
		serve(t, l)
		secure := rdmanet.Dialer{Providers: d.Providers, Transport: d.Transport, TLSConfig: keys.known()}
		var p peer.Peer
		_, err = client(t, "rdma://"+l.Addr().String(), &secure).UnaryCall(callContext(t), request(1), grpc.Peer(&p))
		require.NoError(t, err)
		assert.Equal(t, "insecure", p.AuthInfo.AuthType())
		info := whose(t, &p)
		require.NotNil(t, info.TLS)
		assert.Equal(t, "server", info.TLS.PeerCertificates[0].Subject.CommonName)
	})
}
