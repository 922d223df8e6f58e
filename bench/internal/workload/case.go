// Package workload has the words that the load and the report share. A work is what a program does,
// such as round trips of 64 bytes on one conn. A Case is a work on a transport: a row of the table.
// Each time it is measured it yields a Sample.
package workload

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// The kinds of work that are measured.
const (
	ModeLat  = "lat"  // a round trip of size bytes
	ModeBW   = "bw"   // a one-way stream in writes of size bytes
	ModeRPC  = "rpc"  // a gRPC unary call that echoes size bytes
	ModeConn = "conn" // dial, echo one byte, close
	ModeZC   = "zc"   // like bw, stamped and verified, by the zero-copy calls
	ModeHTTP = "http" // GETs of size bytes over HTTP/1.1
	// ModeFirst is the first conn of a client process to a server process, with a first byte there
	// and back. One client meets several servers. libfabric's providers are listed once before
	// that, since it takes long.
	ModeFirst = "first"
	ModeIdle  = "idle" // conns that do nothing, or peers
)

// The transports.
const (
	TransportTCP      = "tcp"
	TransportUnix     = "unix"
	TransportRDMA     = "rdma"
	TransportRsockets = "rsockets" // measured by rstream
	// TransportFresh is rdma with a control connection over TCP for every conn, where
	// rdma has one for all conns to a peer. Only dialing shows the difference.
	TransportFresh = "rdma-noreuse"
)

// A Case is one row of the table: one kind of work on one transport.
type Case struct {
	Mode      string `json:"mode"`
	Transport string `json:"transport"` // one of the transports above
	Provider  string `json:"provider"`  // libfabric's name for it; empty unless it is rdma
	Size      int    `json:"size"`      // bytes per write, each way for lat and rpc
	Inflight  int    `json:"inflight"`  // calls at once on each conn, for rpc
	Conns     int    `json:"conns"`     // conns used at once
	OneCore   bool   `json:"one_core"`  // all processes run on one CPU
	Load      bool   `json:"busy_host"` // a program that computes runs on every CPU
	// Client processes with a conn each: those that only wait, and those that work at the same
	// time. Both are 0 if one client process has all conns.
	Idle int `json:"idle_peers,omitempty"`
	Busy int `json:"busy_peers,omitempty"`
}

// Work returns the case without its transport: rows of one work are compared.
func (c Case) Work() Case {
	c.Transport, c.Provider = "", ""
	return c
}

func (c Case) String() string {
	text := fmt.Sprintf("%s %s, %s, %d conns, %d in flight", c.Mode, SizeText(c.Size), c.Label(), c.Conns, c.Inflight)
	if c.Peers() > 0 {
		text += fmt.Sprintf(", %d idle peers, %d busy", c.Idle, c.Busy)
	}
	if c.OneCore {
		text += ", one core"
	}
	if c.Load {
		text += ", on a busy host"
	}
	return text
}

// Label names the transport and its provider.
func (c Case) Label() string {
	if c.Provider == "" {
		return c.Transport
	}
	return c.Transport + "/" + c.Provider
}

// SizeText prints a number of bytes, in KiB or MiB if it can.
func SizeText(n int) string {
	switch {
	case n >= 1<<20 && n%(1<<20) == 0:
		return strconv.Itoa(n>>20) + "M"
	case n >= 1<<10 && n%(1<<10) == 0:
		return strconv.Itoa(n>>10) + "K"
	}
	return strconv.Itoa(n)
}

// ModePeers is the flag's name for works of many client processes, each with a conn of its own, on
// one server process. The rows of these works have the modes lat, bw and idle. ModePeers is also
// the mode of the processes themselves, which do all three.
const ModePeers = "peers"

// ShmPeers is how many peers can be reached through shared memory at a time.
const ShmPeers = rdmanet.DefaultMaxShmPeers

// Peers returns how many client processes the work has, 0 if it is of the plain kind.
func (c Case) Peers() int { return c.Idle + c.Busy }

// Among returns the work c of one peer while idle others have a conn, too.
func (c Case) Among(idle int) Case {
	c.Idle, c.Busy = idle, 1
	return c
}

// IsAmong reports whether this is the work of one peer while idle ones are there.
func (c Case) IsAmong() bool { return c.Busy == 1 && c.Idle > 0 }

// By returns the work c done by that many peers at once.
func (c Case) By(busy int) Case {
	c.Idle, c.Busy = 0, busy
	return c
}

// IdlePeers returns the work of n peers that are only there, to see what they cost.
func IdlePeers(n int) Case {
	return Case{Mode: ModeIdle, Size: 1, Inflight: 1, Conns: 1, Idle: n}
}

// Impossible says why a row cannot be measured on any machine. It is empty for all others.
func (c Case) Impossible() string {
	if c.Transport == TransportRDMA && c.Provider == Shm.Provider && c.Peers() > ShmPeers {
		return fmt.Sprintf("shm has at most %d peers (Transport.MaxShmPeers)", ShmPeers)
	}
	return ""
}

// peersText says which peers a work has.
func (c Case) peersText() string {
	switch {
	case c.Busy > 1 && c.Idle == 0:
		return fmt.Sprintf(" by %d peers", c.Busy)
	case c.Busy > 0:
		return fmt.Sprintf(" among %d idle peers", c.Idle)
	case c.Idle > 0:
		return fmt.Sprintf(" of %d peers", c.Idle)
	}
	return ""
}

// WorkText names a row's work: "rpc 64", "rpc 64 x64" for 64 calls in flight.
func (c Case) WorkText() string {
	text := c.Mode
	if c.Mode != ModeConn && c.Mode != ModeIdle && c.Mode != ModeFirst {
		text += " " + SizeText(c.Size)
	}
	return text + c.Conditions()
}

// Conditions names all but the mode and the size: " x64 on 2 conns".
func (c Case) Conditions() (text string) {
	if c.Inflight > 1 {
		text = " x" + strconv.Itoa(c.Inflight)
	}
	if c.Conns > 1 {
		text += fmt.Sprintf(" on %d conns", c.Conns)
	}
	text += c.peersText()
	if c.OneCore {
		text += " on 1 core"
	}
	if c.Load {
		text += " on a busy host"
	}
	return text
}

// Slug turns text into a part of a file's name.
func Slug(text string) string {
	return strings.Trim(strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '_':
			return r
		}
		return '-'
	}, text), "-")
}
