//go:build linux && cgo

package systemtest

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// crowdVar says how many connections the role "crowd" keeps open.
const crowdVar = "RDMANET_TEST_CROWD"

func init() { rdmatest.Roles["crowd"] = crowd }

// crowd opens many connections to a listener that never complete their handshake, and
// opens them again when the listener drops them. It ends when its standard input does.
func crowd(_, addr string) error {
	n, err := strconv.Atoi(os.Getenv(crowdVar))
	if err != nil {
		return err
	}
	var up sync.WaitGroup
	for i := range n {
		up.Add(1)
		go loiter(addr, i%3, sync.OnceFunc(up.Done))
		time.Sleep(100 * time.Microsecond)
	}
	up.Wait()
	fmt.Println("all have been in")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// loiter connects again and again. manner says what it sends: nothing (0), a preamble
// byte by byte (1), or a hello that never comes to an end (2).
func loiter(addr string, manner int, up func()) {
	text := (&framing.Preamble{Version: framing.Version}).Append(nil)
	text = append(text, 0xff, 0xff, 0, 0, byte(framing.KindHello))
	for {
		if nc, err := net.Dial("tcp", addr); err == nil {
			up()
			dawdle(nc, text, manner)
			nc.Close()
		}
		time.Sleep(2*time.Second + rand.N(2*time.Second))
	}
}

func dawdle(nc net.Conn, text []byte, manner int) {
	if manner == 2 {
		if _, err := nc.Write(text); err != nil {
			return
		}
	}
	var buf [64]byte
	for i := 0; ; i++ {
		_ = nc.SetReadDeadline(time.Now().Add(500 * time.Millisecond))
		if _, err := nc.Read(buf[:]); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return // dropped
		}
		if manner == 0 {
			continue
		}
		if _, err := nc.Write([]byte{text[i%len(text)]}); err != nil {
			return
		}
	}
}

// TestCrowdOfHalfOpenConnections: ten thousand connections that send nothing, or send
// slowly, cost the listener a bounded amount of memory. They neither keep new conns
// out nor keep existing ones from working.
func TestCrowdOfHalfOpenConnections(t *testing.T) {
	size := rdmatest.Rounds(3000, 10_000)
	tr := new(rdmanet.Transport)
	rdmatest.Cleanly(t, tr)
	providers := []string{testenv.Native}
	l := rdmatest.Listen(t, rdmanet.ListenConfig{Transport: tr, Providers: providers})
	d := &rdmanet.Dialer{Transport: tr, Providers: providers}
	a, b := rdmatest.Meet(t, d, l)
	before, alone := rdmatest.GoMemory(), resident()

	cmd := rdmatest.Process(t, "crowd", "", l.Addr().String())
	cmd.Env = append(cmd.Env, crowdVar+"="+strconv.Itoa(size))
	stdin, stdout := rdmatest.Start(t, cmd)
	in := make(chan error, 1)
	go func() {
		_, err := stdout.ReadString('\n')
		in <- err
	}()
	// A Dialer of its own: each of its conns has its own control connection.
	stranger := &rdmanet.Dialer{Transport: tr, Providers: providers, DisableReuse: true}
	var slowest time.Duration
	dials, memory, rss, handshakes := 0, int64(0), int64(0), 0
	visit := func() {
		begin := time.Now()
		c, s := rdmatest.Meet(t, stranger, l)
		slowest = max(slowest, time.Since(begin))
		rdmatest.Echo(t, c, s)
		rdmatest.Echo(t, a, b)
		rdmatest.CloseAll(t, c, s)
		dials++
		memory, rss = max(memory, rdmatest.GoMemory()-before), max(rss, resident()-alone)
		handshakes = max(handshakes, tr.Stats().Handshakes)
	}
	for up := false; !up; visit() {
		select {
		case err := <-in:
			require.NoError(t, err)
			up = true
		default:
		}
	}
	for begin := time.Now(); time.Since(begin) < time.Duration(rdmatest.Rounds(3, 30))*time.Second; time.Sleep(10 * time.Millisecond) {
		visit()
	}
	stats := tr.Stats()
	t.Logf("%d connections: %d dials, the slowest in %v; %d KiB more memory, %d KiB resident; %d handshakes at most; failures %v",
		size, dials, slowest, memory>>10, rss>>10, handshakes, stats.HandshakeFailures)
	assert.Less(t, slowest, 5*time.Second, "good clients get in")
	assert.Less(t, memory, int64(64<<20), "memory")
	assert.NotZero(t, stats.HandshakeFailures["busy"])
	assert.LessOrEqual(t, handshakes, 1024)

	require.NoError(t, stdin.Close())
	require.NoError(t, cmd.Wait())
	rdmatest.Eventually(t, func() bool { return tr.Stats().Handshakes == 0 }, "no handshakes are left")
	rdmatest.Echo(t, a, b)
	rdmatest.CloseAll(t, a, b)
}
