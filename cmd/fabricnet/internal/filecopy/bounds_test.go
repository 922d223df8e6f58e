package filecopy

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/cmd/fabricnet/internal/connlimit"
)

// pipes is a listener whose conns are pipes: what a sender does not read is not written, as by
// a peer that gives no window.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
	open  map[string]*atomic.Int64 // by host
}

type pipe struct {
	net.Conn
	host string
	p    *pipes
}

func (c pipe) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.ParseIP(c.host), Port: 1} }

func (c pipe) Close() error {
	c.p.open[c.host].Add(-1)
	return c.Conn.Close()
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { close(p.done); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

// dial returns once the receiver has done all that it does at once.
func (p *pipes) dial(t *testing.T, host string) net.Conn {
	far, near := net.Pipe()
	t.Cleanup(func() { far.Close() })
	p.open[host].Add(1)
	p.conns <- pipe{near, host, p}
	synctest.Wait()
	return far
}

const here, there = "192.0.2.1", "192.0.2.2"

// bounded runs a receiver on virtual time.
func bounded(t *testing.T, r *Receiver) (p *pipes, end func()) {
	root, err := os.OpenRoot(t.TempDir())
	require.NoError(t, err)
	r.Root = root
	if r.Report == nil {
		r.Report = func(string) {}
	}
	p = &pipes{make(chan net.Conn), make(chan struct{}), map[string]*atomic.Int64{here: {}, there: {}}}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- r.Serve(ctx, p) }()
	return p, func() {
		cancel()
		assert.NoError(t, <-served)
		assert.NoError(t, root.Close())
	}
}

func verdictOf(t *testing.T, c net.Conn) (v verdict) {
	t.Helper()
	require.NoError(t, json.NewDecoder(c).Decode(&v))
	return v
}

// TestConnsAreBounded: senders that take no verdict, because they were refused or have failed, count,
// too. Senders of other hosts keep their places.
func TestConnsAreBounded(t *testing.T) {
	for name, sends := range map[string]string{"refused": "", "failed": "no header\n"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := &Receiver{Senders: connlimit.Limiter{Max: 4, MaxPerHost: 2}}
				p, end := bounded(t, r)
				for range 100 * spare {
					if c := p.dial(t, here); sends != "" {
						_, _ = io.WriteString(c, sends) // fails if the conn was refused
					}
				}
				assert.LessOrEqual(t, p.open[here].Load(), int64(r.Senders.MaxPerHost+spare/2))
				first := p.dial(t, there)
				_, err := io.WriteString(first, "no header\n")
				require.NoError(t, err)
				assert.Contains(t, verdictOf(t, first).Error, "header")
				end()
				assert.Zero(t, p.open[here].Load()+p.open[there].Load())
			})
		})
	}
}

// TestRefusedSender: it is told why, and if it does not listen, it is gone soon, even if senders may
// do nothing for ever.
func TestRefusedSender(t *testing.T) {
	for why, r := range map[string]*Receiver{
		"the receiver has as many senders as its --max-conns allows, 1: try again later":                      {Senders: connlimit.Limiter{Max: 1}},
		"the receiver has as many senders of one host as its --max-conns-per-host allows, 1: try again later": {Senders: connlimit.Limiter{Max: 2, MaxPerHost: 1}},
	} {
		t.Run(why, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, end := bounded(t, r)
				p.dial(t, here)
				assert.Equal(t, verdict{Error: why}, verdictOf(t, p.dial(t, here)))
				p.dial(t, here)
				assert.EqualValues(t, 2, p.open[here].Load())
				time.Sleep(refusalTime)
				synctest.Wait()
				assert.EqualValues(t, 1, p.open[here].Load(), "the first one is served")
				end()
			})
		})
	}
}

// TestNextFile: a sender that has its verdict can come with its next file, since its place is free
// before that.
func TestNextFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, end := bounded(t, &Receiver{Senders: connlimit.Limiter{Max: 1}})
		for range 2 {
			_, err := io.WriteString(p.dial(t, here), "no header\n") // the verdict is not read
			require.NoError(t, err)
			synctest.Wait()
		}
		end()
	})
}

// TestRefusalsAreHushed: the report has a line for each kind of refusal, however many there are.
func TestRefusalsAreHushed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lines := make(chan string, 1000)
		p, end := bounded(t, &Receiver{Senders: connlimit.Limiter{Max: 2, MaxPerHost: 1}, Report: func(line string) { lines <- line }})
		for range 10 * spare {
			p.dial(t, here)
		}
		for range 10 * spare {
			p.dial(t, there)
		}
		require.Len(t, lines, 2)
		assert.Contains(t, <-lines, "from "+here+":1: the receiver has as many senders of one host")
		assert.Contains(t, <-lines, "from "+there+":1: the receiver has as many senders as")
		end()
	})
}
