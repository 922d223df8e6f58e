package main

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// record is a log that can be read while it is written.
type record struct {
	mu   sync.Mutex
	text bytes.Buffer // guarded by mu
}

func (r *record) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.Write(b)
}

func (r *record) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.String()
}

// startFlags runs a proxy with the given flags until the test ends.
func startFlags(t *testing.T, flags ...string) (p *proxy, at endpoint, log *record) {
	t.Helper()
	o, err := parseProxy(flags, io.Discard)
	require.NoError(t, err)
	log = new(record)
	p, l, err := o.open(t.Context(), slog.New(slog.NewTextHandler(io.MultiWriter(t.Output(), log), nil)))
	require.NoError(t, err)
	t.Cleanup(rdmanet.DefaultTransport.CloseIdle)
	serve(t, p, l)
	return p, endpoint{o.from.network, l.Addr().String()}, log
}

// A client is let in by its certificate: by its signer and by a name in it. The client checks
// the server's certificate, too.
func TestTLS(t *testing.T) {
	ours, theirs := newAuthority(t), newAuthority(t)
	cert, key := ours.issue(t, "server")
	alice, aliceKey := ours.issue(t, "alice")
	bob, bobKey := ours.issue(t, "bob")
	mallory, malloryKey := theirs.issue(t, "alice")
	for _, provider := range testenv.Providers() {
		t.Run(provider, func(t *testing.T) {
			t.Setenv("RDMANET_PROVIDERS", provider)
			backend, to := listen(t, "tcp")
			server, fabric, _ := startFlags(t, "-listen", "rdma://"+testenv.Address(), "-to", to.String(), "-insecure",
				"-tls-cert", cert, "-tls-key", key, "-tls-client-ca", ours.file, "-allow-client", "carol.test,spiffe://test/alice")
			for name, tt := range map[string]struct {
				flags []string
				want  string // of the client's log; "" if it is let in
			}{
				"alice":            {[]string{"-tls-ca", ours.file, "-tls-cert", alice, "-tls-key", aliceKey}, ""},
				"another name":     {[]string{"-tls-ca", ours.file, "-tls-cert", bob, "-tls-key", bobKey}, `no name in the client's certificate is let in: it has \"bob\", \"bob.test\", \"spiffe://test/bob\"`},
				"another signer":   {[]string{"-tls-ca", ours.file, "-tls-cert", mallory, "-tls-key", malloryKey}, "tls: "},
				"no certificate":   {[]string{"-tls-ca", ours.file}, "tls: "},
				"no TLS":           {nil, "TLS"},
				"another server":   {[]string{"-tls-ca", theirs.file, "-tls-cert", alice, "-tls-key", aliceKey}, "certificate signed by unknown authority"},
				"the wrong server": {[]string{"-tls-ca", ours.file, "-tls-server-name", "else.test", "-tls-cert", alice, "-tls-key", aliceKey}, "else.test"},
				"the right server": {[]string{"-tls-ca", ours.file, "-tls-server-name", "server.test", "-tls-cert", alice, "-tls-key", aliceKey}, ""},
			} {
				t.Run(name, func(t *testing.T) {
					flags := append([]string{"-listen", "tcp://127.0.0.1:0", "-to", fabric.String()}, tt.flags...)
					client, at, log := startFlags(t, flags...)
					if tt.want == "" {
						c := connect(t, at)
						pass(t, c, accept(t, backend))
						return
					}
					before := server.counts.all()
					assertReset(t, at)
					require.Eventually(t, func() bool { return client.counts.ended[cannotConnect].Load() == 1 }, patience, time.Millisecond)
					assert.Contains(t, log.String(), tt.want)
					assert.Equal(t, before, server.counts.all(), "no conn got through")
				})
			}
		})
	}
}

// all returns the number of conns accepted so far.
func (c *counters) all() uint64 {
	n := uint64(c.open.Load())
	for i := range c.ended {
		n += c.ended[i].Load()
	}
	return n
}

// Certificates that are renewed on disk count from the next handshake on. A file that is no
// certificate is noticed at the start.
func TestCertificateFiles(t *testing.T) {
	ca := newAuthority(t)
	cert, key := ca.issue(t, "server")
	f := &tlsFiles{cert: cert, key: key, ca: ca.file, clientCA: ca.file}
	server, err := f.server()
	require.NoError(t, err)
	client, err := f.client()
	require.NoError(t, err)
	first, err := server.GetCertificate(nil)
	require.NoError(t, err)
	ca.issue(t, "server")
	second, err := server.GetCertificate(nil)
	require.NoError(t, err)
	assert.NotEqual(t, first.Certificate, second.Certificate)
	again, err := client.GetClientCertificate(nil)
	require.NoError(t, err)
	assert.Equal(t, second.Certificate, again.Certificate)

	for _, bad := range []tlsFiles{
		{cert: key, key: key}, {cert: cert, key: cert}, {cert: cert + "x", key: key}, {cert: cert, key: key, clientCA: key},
	} {
		_, err := bad.server()
		assert.Error(t, err, "%v", bad)
	}
	_, err = (&tlsFiles{ca: key}).client()
	assert.ErrorContains(t, err, "-tls-ca: there is no certificate in "+key)
	none := new(tlsFiles)
	server, err = none.server()
	assert.NoError(t, err)
	assert.Nil(t, server)
	client, err = none.client()
	assert.NoError(t, err)
	assert.Nil(t, client)
}

// Files are parsed once, and again when one of them has changed: in place, by another file in its
// place, or by another link to it.
func TestCertificateFilesAreParsedOnce(t *testing.T) {
	ca := newAuthority(t)
	cert, key := ca.issue(t, "server")
	past := time.Now().Add(-time.Hour)
	age := func(name string, by time.Duration) { require.NoError(t, os.Chtimes(name, past.Add(by), past.Add(by))) }
	age(cert, 0)
	age(key, 0)
	server, err := (&tlsFiles{cert: cert, key: key}).server()
	require.NoError(t, err)
	current := func() *tls.Certificate {
		pair, err := server.GetCertificate(nil)
		require.NoError(t, err)
		again, err := server.GetCertificate(nil)
		require.NoError(t, err)
		assert.Same(t, pair, again)
		return pair
	}
	was := current()
	for name, renew := range map[string]func(){
		"in place": func() { ca.issue(t, "server"); age(cert, time.Minute); age(key, time.Minute) },
		"another file of the same age": func() {
			newCert, newKey := ca.issue(t, "renewed")
			age(newCert, 0)
			age(newKey, 0)
			require.NoError(t, errors.Join(os.Rename(newCert, cert), os.Rename(newKey, key)))
		},
		"another link": func() {
			newCert, newKey := ca.issue(t, "linked")
			age(newCert, 0)
			age(newKey, 0)
			require.NoError(t, errors.Join(os.Remove(cert), os.Remove(key), os.Symlink(newCert, cert), os.Symlink(newKey, key)))
		},
	} {
		renew()
		now := current()
		assert.NotEqual(t, was.Certificate, now.Certificate, name)
		was = now
	}
	require.NoError(t, os.Remove(key))
	_, err = server.GetCertificate(nil)
	assert.ErrorIs(t, err, os.ErrNotExist)
}

// Clients from networks that are not allowed are reset; over a fabric the dialer is told why.
func TestAllow(t *testing.T) {
	backend, to := listen(t, "tcp")
	p, at, log := startFlags(t, "-listen", "tcp://127.0.0.1:0", "-to", to.String(), "-allow", "127.0.0.3,127.0.1.0/24")
	for from, welcome := range map[string]bool{"127.0.0.3": true, "127.0.1.9": true, "127.0.0.1": false, "127.0.2.1": false} {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		c, err := d.DialContext(t.Context(), "tcp", at.address)
		if welcome {
			require.NoError(t, err, from)
			pass(t, limited(t, c.(conn)), accept(t, backend))
		} else {
			assertResetConn(t, c, err)
		}
	}
	assert.EqualValues(t, 2, p.counts.ended[notAllowed].Load())
	assert.Equal(t, 1, strings.Count(log.String(), "msg=refused"), "strangers do not fill the log")

	for _, provider := range testenv.Providers() {
		t.Run(provider, func(t *testing.T) {
			t.Setenv("RDMANET_PROVIDERS", provider)
			_, at, _ := startFlags(t, "-listen", "rdma://"+testenv.Address(), "-to", to.String(), "-insecure", "-allow", "192.0.2.0/24")
			_, err := at.dial(t.Context(), new(rdmanet.Dialer))
			assert.ErrorIs(t, err, rdmanet.ErrUnauthorized)
			assert.ErrorContains(t, err, "clients from this network")
			_, at, _ = startFlags(t, "-listen", "rdma://"+testenv.Address(), "-to", to.String(), "-insecure", "-allow", testenv.Host())
			pass(t, connect(t, at), accept(t, backend))
		})
	}
}

// assertReset checks that a conn to an endpoint is ended at once.
func assertReset(t *testing.T, at endpoint) {
	t.Helper()
	c, err := at.dial(t.Context(), new(rdmanet.Dialer))
	assertResetConn(t, c, err)
}
