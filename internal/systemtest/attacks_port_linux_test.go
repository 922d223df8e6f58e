//go:build linux && cgo

package systemtest

import (
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/seed202c38ff/fabricnet/internal/rdmatest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// portAttack is what a stranger does at a provider's port, and the known results.
type portAttack struct {
	name  string
	run   func(s *intruder)
	known known
	fails map[string]int // by provider, how many receives fail at least
	only  string         // the only provider over which it makes a difference, "" for all
}

var portAttacks = []portAttack{
	{"a request, and an answer to nothing", unaskedAnswer, outcomes(crash, crash), nil, ""},
	{"64 connections that send part of a message and close", closeWithinMessages, outcomes(nothing, nothing).or("net", silence), map[string]int{"net": 64}, ""},
	{"80 connections that send part of a message and stay", stayWithinMessages, outcomes(dialsWork, nothing), nil, ""},
	{"1100 connections that send part of a message and stay", manyWithinMessages, known{"tcp;ofi_rxm": {dialsWork}}, nil, "tcp;ofi_rxm"},
	{"garbage instead of a request", garbage, outcomes(ownEnds, ownEnds), nil, ""},
	{"half a request", halfRequest, outcomes(ownEnds, ownEnds), nil, ""},
	{"messages of 2^60 bytes, and of less than their header", hugeLengths, outcomes(ownEnds, nothing), nil, ""},
	{"messages with invalid headers", invalidHeaders, outcomes(ownEnds, ownEnds), nil, ""},
	{"200 connections that say nothing", sayNothing, outcomes(nothing, nothing), nil, ""},
	{"from a peer's address: requests in the name of its port", replace, outcomes(dialsWork, dialsWork).or("net", ownEnds).or("tcp;ofi_rxm", ownEnds), nil, ""},
}

// intruder is a stranger at a provider's port.
type intruder struct {
	t        *testing.T
	provider string
	port     int
	client   []byte // the name of the good client's endpoint
	conns    []net.Conn
}

// connect opens a connection from an address other than the good client's.
func (s *intruder) connect() net.Conn { return s.connectFrom(net.IPv4(127, 0, 0, 2)) }

func (s *intruder) connectFrom(ip net.IP) net.Conn {
	s.t.Helper()
	d := net.Dialer{Timeout: rdmatest.Patience, LocalAddr: &net.TCPAddr{IP: ip}}
	c, err := d.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)))
	require.NoError(s.t, err)
	s.conns = append(s.conns, c)
	return c
}

func (s *intruder) leave() {
	for _, c := range s.conns {
		_ = c.Close()
	}
}

// ended counts the connections that the provider has closed.
func (s *intruder) ended() (n int) {
	for _, c := range s.conns {
		_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
		_, err := io.Copy(io.Discard, c)
		if !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, net.ErrClosed) {
			n++
		}
	}
	return n
}

func (s *intruder) send(c net.Conn, b []byte) {
	s.t.Helper()
	_, err := c.Write(b)
	require.NoError(s.t, err)
}

// admitted returns a connection whose request was accepted. The request claims to be of a peer
// that can be reached at the given port.
func (s *intruder) admitted(claimed int) net.Conn {
	s.t.Helper()
	c := s.connect()
	s.send(c, request(s.provider, claimed, 1))
	assert.True(s.t, s.accepted(c), "the request is accepted")
	return c
}

// accepted reads the answer to a request, and reports whether the request was accepted.
func (s *intruder) accepted(c net.Conn) bool {
	s.t.Helper()
	require.NoError(s.t, c.SetReadDeadline(time.Now().Add(rdmatest.Patience)))
	answer := make([]byte, controlSize)
	_, err := io.ReadFull(c, answer)
	require.NoError(s.t, err, "the answer to a request")
	_, err = io.ReadFull(c, make([]byte, binary.BigEndian.Uint16(answer[2:])))
	require.NoError(s.t, err)
	return answer[1] == 1
}

// controlSize is the size of libfabric's ofi_ctrl_hdr, with which requests and their answers begin.
const controlSize = 32

// request returns a connection request. What follows the header depends on the provider: version,
// and port and process of the peer that asks.
func request(provider string, port, pid int) []byte {
	data := make([]byte, 8)
	if provider == "tcp;ofi_rxm" {
		data = make([]byte, 24)
		data[0], data[1], data[2], data[3] = 1, 2, 4, 3 // versions; little endian
		binary.NativeEndian.PutUint16(data[4:], uint16(port))
		binary.NativeEndian.PutUint32(data[8:], 8448) // its eager limit: FI_OFI_RXM_BUFFER_SIZE as rdmanet sets it
		binary.NativeEndian.PutUint64(data[16:], uint64(pid)<<32)
	} else {
		binary.BigEndian.PutUint16(data[2:], uint16(port))
		binary.BigEndian.PutUint32(data[4:], uint32(pid))
	}
	b := make([]byte, controlSize, controlSize+len(data))
	b[0] = 3 // version; the type of a request is 0
	binary.BigEndian.PutUint16(b[2:], uint16(len(data)))
	binary.NativeEndian.PutUint64(b[24:], 1) // same byte order
	return append(b, data...)
}

// header is what each message on a connection begins with.
type header struct {
	op, opData, iovs, headerSize uint8
	size                         uint64
}

func (h header) bytes() []byte {
	b := []byte{3, h.op, 0, 0, h.opData, h.iovs, h.headerSize, 0}
	return binary.NativeEndian.AppendUint64(b, h.size)
}

const (
	opMessage  = 0
	opWrite    = 4
	headerSize = 16
)

func unaskedAnswer(s *intruder) {
	s.send(s.admitted(1), header{opData: 2, headerSize: headerSize, size: headerSize}.bytes())
}

// withinMessages opens n connections, each of which has sent part of a message.
func withinMessages(s *intruder, n int) {
	part := append(header{op: opMessage, headerSize: headerSize, size: headerSize + 1000}.bytes(), 1, 2, 3)
	for i := range n {
		s.send(s.connect(), request(s.provider, 1+i, 1))
	}
	for _, c := range s.conns {
		assert.True(s.t, s.accepted(c), "the request is accepted")
		s.send(c, part)
	}
}

func closeWithinMessages(s *intruder) {
	withinMessages(s, 64)
	time.Sleep(100 * time.Millisecond) // until all of it has arrived
	s.leave()
}

func stayWithinMessages(s *intruder) { withinMessages(s, 80) }

func manyWithinMessages(s *intruder) { withinMessages(s, 1100) }

func garbage(s *intruder) {
	rng := rand.New(rand.NewPCG(1, 1))
	for n := range 20 {
		b := make([]byte, 1<<(n%12))
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		s.send(s.connect(), b)
	}
}

func halfRequest(s *intruder) {
	whole := request(s.provider, 1, 1)
	for n := 1; n < len(whole); n += 3 {
		s.send(s.connect(), whole[:n])
	}
	long := request(s.provider, 1, 1)
	binary.BigEndian.PutUint16(long[2:], 0xffff)
	s.send(s.connect(), long)
}

func hugeLengths(s *intruder) {
	s.send(s.admitted(1), header{op: opMessage, headerSize: headerSize, size: 1 << 60}.bytes())
	s.send(s.admitted(2), header{op: opMessage, headerSize: headerSize, size: 1}.bytes())
}

func invalidHeaders(s *intruder) {
	for i, h := range []header{
		{op: 250, headerSize: headerSize, size: headerSize},
		{op: opMessage, headerSize: 255, size: 300},
		{op: opWrite, iovs: 1, headerSize: headerSize + 24, size: 100},
		{op: 3, headerSize: headerSize, size: 100},
	} {
		s.send(s.admitted(1+i), append(h.bytes(), make([]byte, 300)...))
	}
}

func sayNothing(s *intruder) {
	for range 200 {
		s.connect()
	}
}

// replace connects from the good client's IP address, and claims the good client's port.
func replace(s *intruder) {
	port, taken := int(binary.BigEndian.Uint16(s.client[2:])), 0
	for i := range 10 {
		c := s.connectFrom(net.IPv4(127, 0, 0, 1))
		s.send(c, request(s.provider, port, 1+i))
		if s.accepted(c) {
			taken++
		}
	}
	s.t.Logf("it has taken the peer's place %d times", taken)
}
