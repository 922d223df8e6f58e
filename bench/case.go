package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// The kinds of work that are measured.
const (
	modeLat  = "lat"  // a round trip of size bytes
	modeBW   = "bw"   // a one-way stream in writes of size bytes
	modeRPC  = "rpc"  // a gRPC unary call that echoes size bytes
	modeConn = "conn" // dial, echo one byte, close
	modeZC   = "zc"   // like bw, stamped and verified, by the zero-copy calls
	modeHTTP = "http" // GETs of size bytes over HTTP/1.1
	// modeFirst is the first conn of a client process to a server process, with a first byte there
	// and back. One client meets several servers. libfabric's providers are listed once before
	// that, since it takes long.
	modeFirst = "first"
	modeIdle  = "idle" // conns that do nothing, or peers
)

// The transports.
const (
	transportTCP      = "tcp"
	transportUnix     = "unix"
	transportRDMA     = "rdma"
	transportRsockets = "rsockets" // measured by rstream
	// transportFresh is rdma with a control connection over TCP for every conn, where
	// rdma has one for all conns to a peer. Only dialing shows the difference.
	transportFresh = "rdma-noreuse"
	// transportFar is rdma between processes that do not map each other's memory, as if they were
	// on two hosts. Only large data over shared memory shows the difference.
	transportFar = "rdma-unmapped"
)

// A cell is one row of the table: one kind of work on one transport.
type cell struct {
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

// work returns the cell without its transport: rows of one work are compared.
func (c cell) work() cell {
	c.Transport, c.Provider = "", ""
	return c
}

func (c cell) String() string {
	text := fmt.Sprintf("%s %s, %s, %d conns, %d in flight", c.Mode, sizeText(c.Size), c.label(), c.Conns, c.Inflight)
	if c.peers() > 0 {
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

func (c cell) label() string {
	if c.Provider == "" {
		return c.Transport
	}
	return c.Transport + "/" + c.Provider
}

func sizeText(n int) string {
	switch {
	case n >= 1<<20 && n%(1<<20) == 0:
		return strconv.Itoa(n>>20) + "M"
	case n >= 1<<10 && n%(1<<10) == 0:
		return strconv.Itoa(n>>10) + "K"
	}
	return strconv.Itoa(n)
}

// modePeers is the flag's name for works of many client processes, each with a conn of its own, on
// one server process. The rows of these works have the modes lat, bw and idle. modePeers is also
// the mode of the processes themselves, which do all three.
const modePeers = "peers"

// shmPeers is how many peers can be reached through shared memory at a time.
const shmPeers = rdmanet.DefaultMaxShmPeers

// peers returns how many client processes the work has, 0 if it is of the plain kind.
func (c cell) peers() int { return c.Idle + c.Busy }

// among returns the work c of one peer while idle others have a conn, too.
func (c cell) among(idle int) cell {
	c.Idle, c.Busy = idle, 1
	return c
}

// isAmong reports whether this is the work of one peer while idle ones are there.
func (c cell) isAmong() bool { return c.Busy == 1 && c.Idle > 0 }

// by returns the work c done by that many peers at once.
func (c cell) by(busy int) cell {
	c.Idle, c.Busy = 0, busy
	return c
}

// idlePeers returns the work of n peers that are only there, to see what they cost.
func idlePeers(n int) cell {
	return cell{Mode: modeIdle, Size: 1, Inflight: 1, Conns: 1, Idle: n}
}

// notPossible says why a row cannot be measured on any machine. It is empty for all others.
func (c cell) notPossible() string {
	if c.Transport == transportRDMA && c.Provider == overShm.provider && c.peers() > shmPeers {
		return fmt.Sprintf("shm has at most %d peers (Transport.MaxShmPeers)", shmPeers)
	}
	return ""
}

// peersText says which peers a work has.
func (c cell) peersText() string {
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

// workText names a row's work: "rpc 64", "rpc 64 x64" for 64 calls in flight.
func (c cell) workText() string {
	text := c.Mode
	if c.Mode != modeConn && c.Mode != modeIdle && c.Mode != modeFirst {
		text += " " + sizeText(c.Size)
	}
	return text + c.conditions()
}

// conditions names all but the mode and the size: " x64 on 2 conns".
func (c cell) conditions() (text string) {
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

// slug turns text into a part of a file's name.
func slug(text string) string {
	return strings.Trim(strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '_':
			return r
		}
		return '-'
	}, text), "-")
}
