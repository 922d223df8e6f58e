package rdmanet

import (
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"github.com/seed202c38ff/fabricnet/internal/engine"
)

// record is what InfoOf says of a conn. It must not lead to the conn's addresses, which would then
// keep themselves alive, nor to the user's Conn.
type record struct {
	id             uint64
	opened         time.Time
	dialed, reused bool
	fallback       error        // why it is plain TCP; nil if it is not, or if the client chose that
	fabric         *engine.Conn // nil for plain TCP, as is link
	link           *link
}

// lastID is shared by the whole process, so that ConnInfo.ID also tells conns of different
// Transports apart.
var lastID atomic.Uint64

// records has the records of conns by the pointers to their addresses, of type
// weak.Pointer[net.TCPAddr], for as long as these exist.
var records sync.Map

// describe lets InfoOf find r by addresses that are one conn's own.
func describe(r *record, addrs ...*net.TCPAddr) {
	for _, a := range addrs {
		key := weak.Make(a)
		records.Store(key, r)
		runtime.AddCleanup(a, records.Delete, any(key))
	}
}

// InfoOf is Conn.Info for code that is given only a conn's address, such as the handlers of a
// gRPC server. a is what the conn's LocalAddr or RemoteAddr returned, possibly through a
// *tls.Conn, or what is in the conn's errors: InfoOf finds the conn by the pointer, not by what it
// points to. It works after Close, and also for a *net.TCPConn that a Dialer or a Listener of this
// package has returned: that is how to find out why a Dialer fell back. It reports false for all
// other addresses, such as those of listeners and in PeerInfo.
func InfoOf(a net.Addr) (ConnInfo, bool) {
	tcp, ok := a.(*net.TCPAddr)
	if !ok || tcp == nil {
		return ConnInfo{}, false
	}
	r, ok := records.Load(weak.Make(tcp))
	if !ok {
		return ConnInfo{}, false
	}
	return r.(*record).info(), true
}

// describePlain returns a plain TCP connection as it is, with its record. fallback is as in record.
func describePlain(nc net.Conn, fallback error) *net.TCPConn {
	c := nc.(*net.TCPConn)
	r := &record{id: lastID.Add(1), opened: time.Now(), dialed: fallback != nil, fallback: fallback}
	for _, a := range []net.Addr{c.LocalAddr(), c.RemoteAddr()} {
		if tcp, ok := a.(*net.TCPAddr); ok && tcp != nil { // it has none if it was reset meanwhile
			describe(r, tcp)
		}
	}
	return c
}
