//go:build linux && cgo

package rdmanet_test

import (
	"context"
	crand "crypto/rand"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/bootstrap"
	"github.com/seed202c38ff/fabricnet/internal/fabric/ofifabric"
	"github.com/seed202c38ff/fabricnet/internal/race"
	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

func init() { rdmatest.Roles["besiegers"] = besiegers }

// besiegers attack a listener's handshake, its admission and, over shm, what it maps, until
// their standard input ends. Fifty a second, or five over shm, complete the handshake and
// never use the fabric, and four at a time say what they should not.
func besiegers(provider, addr string) error {
	ctx, cancel := context.WithCancel(context.Background())
	each := 20 * time.Millisecond
	if provider == "shm" { // each of them makes both sides fill 17 MiB with zeros
		each *= 10
	}
	ended := siege(ctx, ofifabric.New(), addr, each)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for ctx.Err() == nil {
				liar(provider, addr)
				time.Sleep(rand.N(20 * time.Millisecond))
			}
		})
	}
	fmt.Println("they are there")
	_, err := io.Copy(io.Discard, os.Stdin)
	cancel()
	wg.Wait()
	<-ended
	return err
}

// liar goes part of the way through a handshake and then breaks it.
func liar(provider, addr string) {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 2, byte(rand.N(250)), byte(1+rand.N(250)))}, Timeout: rdmatest.Patience}
	nc, err := d.Dial("tcp", addr)
	if err != nil {
		return
	}
	defer nc.Close()
	_ = nc.SetDeadline(time.Now().Add(time.Second))
	noise := make([]byte, 1+rand.N(300))
	_, _ = crand.Read(noise)
	say := func(b []byte) bool {
		_, err := nc.Write(b)
		return err == nil
	}
	if rand.N(5) == 0 {
		say(noise)
		return
	}
	say((&framing.Preamble{Version: framing.Version}).Append(nil))
	hello, err := framing.AppendMessage(nil, framing.KindHello, falseHello(provider))
	if err != nil {
		return
	}
	if rand.N(3) == 0 { // one byte of it is wrong
		hello[rand.N(len(hello))] ^= byte(1 + rand.N(255))
	}
	if !say(hello) {
		return
	}
	if rand.N(2) == 0 {
		_, _ = nc.Read(make([]byte, 64))
	}
	name := noise[:min(len(noise), 40)]
	if rand.N(2) == 0 {
		name = rdmatest.NameOf(nc.LocalAddr())
	}
	attach := framing.Attach{Provider: provider, Name: name, Peer: rand.Uint32(), Slots: 64, Eager: 8192}
	_, _ = crand.Read(attach.Token[:])
	for _, m := range []struct {
		kind framing.Kind
		body framing.Body
	}{{framing.KindAttach, &attach}, {framing.KindConfirm, nil}, {framing.KindAlive, nil}} {
		if b, err := framing.AppendMessage(nil, m.kind, m.body); err != nil || !say(b) {
			return
		}
	}
	say(noise)
	_, _ = io.Copy(io.Discard, nc)
}

// falseHello returns a hello that offers the provider as a process of this host and user
// would, and names a page that is not its own.
func falseHello(provider string) *framing.Hello {
	host, _ := bootstrap.HostID()
	h := &framing.Hello{Host: host, UID: uint32(os.Geteuid())}
	_, _ = crand.Read(h.Process[:])
	infos, err := ofifabric.New().Providers(netip.MustParseAddr(testenv.Host()))
	for _, p := range infos {
		if err == nil && p.Name == provider {
			h.Offers = append(h.Offers, bootstrap.OfferOf(&p))
			break
		}
	}
	pages := []string{"", "rdmanet-nothing", "../../etc/passwd", "..", strings.Repeat("x", 200), "null"}
	if files, err := os.ReadDir("/dev/shm"); err == nil { // and others' names there
		for _, f := range files {
			pages = append(pages, f.Name())
		}
	}
	h.PageName = pages[rand.N(len(pages))]
	_, _ = crand.Read(h.PageNonce[:])
	return h
}

// TestSiege: whatever strangers say in the handshake, and however many they are, a good
// client's conn goes on, new dials succeed, and what the strangers took is given back.
func TestSiege(t *testing.T) {
	for _, provider := range rdmatest.Providers {
		t.Run(provider, func(t *testing.T) {
			here, there := new(rdmanet.Transport), new(rdmanet.Transport)
			rdmatest.Cleanly(t, there)
			t.Cleanup(func() { assert.NoError(t, here.Close()) })
			l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: there, Providers: []string{provider}})
			var served sync.WaitGroup
			served.Go(func() { rdmatest.ServeEcho(l) })
			d := &rdmanet.Dialer{Transport: here, Providers: []string{provider}, Timeout: rdmatest.Patience}
			good := rdmatest.NewGoodClient(t, d, l.Addr().String())

			cmd := rdmatest.Process(t, "besiegers", provider, l.Addr().String())
			stdin, stdout := rdmatest.Start(t, cmd)
			require.Equal(t, "they are there", rdmatest.Line(t, stdout))
			memory := rdmatest.GoMemory()
			var took []time.Duration
			var out []error
			peers := 0
			another := *d
			another.DisableReuse = true
			for begin := time.Now(); time.Since(begin) < time.Duration(rdmatest.AllRounds(3, 200))*time.Second; { // with -soak, ten minutes for all providers
				start := time.Now()
				c, err := another.Dial("rdma", l.Addr().String())
				took = append(took, time.Since(start))
				if err != nil { // on a busy host, half a second may not be enough for a client to prove itself
					out = append(out, err)
					continue
				}
				require.NoError(t, c.Close())
				peers = max(peers, there.Stats().Peers)
				good.Works(t, "besieged")
			}
			slices.Sort(took)
			t.Logf("%d dials, %d failed: median %v, p99 %v, slowest %v; %d peers at most; %d KiB more memory; failures %v",
				len(took), len(out), took[len(took)/2], took[len(took)*99/100], took[len(took)-1], peers, (rdmatest.GoMemory()-memory)>>10, there.Stats().HandshakeFailures)
			assert.LessOrEqual(t, 20*len(out), len(took), "dials that failed: %v", out)
			bound := 5 * time.Second
			if *rdmatest.Soak && !race.Enabled { // on a machine with nothing else to do
				bound = 200 * time.Millisecond
			}
			assert.Less(t, took[len(took)*99/100], bound, "new dials")
			assert.Less(t, peers, 48, "peers, the unproven included")
			assert.Less(t, rdmatest.GoMemory()-memory, int64(64<<20))
			require.NoError(t, stdin.Close())
			require.NoError(t, cmd.Wait())
			good.Stop(t)
			require.NoError(t, l.Close())
			served.Wait()
			rdmatest.Eventually(t, func() bool { return there.Stats().Peers <= 1 }, "the strangers are gone")
		})
	}
}
