package bootstrap

import (
	"io"
	"net"
	"time"

	"github.com/seed202c38ff/fabricnet/framing"
)

// Sniff tells a control connection from another protocol by the connection's first bytes, which it
// leaves there to be read. It waits until they differ from a preamble or are all there, or until
// deadline (zero: none). A client that sends nothing cannot be told apart: Sniff then fails with
// the deadline's error. If Sniff fails, the caller still has to close nc.
func Sniff(nc *net.TCPConn, deadline time.Time) (isFabric bool, err error) {
	raw, err := nc.SyscallConn()
	if err != nil {
		return false, err
	}
	if err := nc.SetReadDeadline(deadline); err != nil {
		return false, err
	}
	var buf [framing.PreambleSize]byte
	var peekErr error
	// The poller tells of new data and of the end, never twice of the same: while there is
	// nothing new, this sleeps, although there is something to be read.
	err = raw.Read(func(fd uintptr) (done bool) {
		var n int
		var over bool
		if n, over, peekErr = peek(fd, buf[:]); peekErr != nil {
			return true
		}
		isFabric, done = judge(buf[:n], over)
		return done
	})
	if err == nil {
		err = peekErr
	}
	if err == nil {
		err = nc.SetReadDeadline(time.Time{})
	}
	return isFabric && err == nil, err
}

// judge says what the first bytes of a connection, PreambleSize of them at most, belong to, unless
// that is still open. over says that no more will come.
func judge(b []byte, over bool) (isFabric, known bool) {
	switch {
	case !prefixMatches(b): // what sends this may well wait for an answer before it sends more
		return false, true
	case len(b) == framing.PreambleSize:
		return true, true
	}
	return false, over // an early end is no error here: the server will see it
}

// readWhilePreamble fills buf, but stops at bytes which no preamble has.
func readWhilePreamble(r io.Reader, buf []byte) (n int, err error) {
	for n < len(buf) && prefixMatches(buf[:n]) && err == nil {
		var k int
		k, err = r.Read(buf[n:])
		n += k
	}
	if n == len(buf) {
		return n, nil
	}
	return n, err
}

func prefixMatches(b []byte) bool {
	n := min(len(b), len(framing.Magic))
	return string(b[:n]) == framing.Magic[:n]
}
