package bootstrap

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/engine"
	"github.com/seed202c38ff/fabricnet/internal/shmdir"
)

// Layout of the page: its mark at the start, a sleeping flag for each side on a pair of cache
// lines of its own, since prefetchers fetch pairs, what each side says about itself, and what
// each side spills.
const (
	pageSize         = pageListenerSpill + engine.SpillSize
	pageDialerFlag   = 64
	pageListenerFlag = 192
	pageDialerSelf   = 320
	pageListenerSelf = 384
	selfSize         = 16
	// Spilled data begins on pages of its own.
	pageDialerSpill   = 4096
	pageListenerSpill = pageDialerSpill + engine.SpillSize
	pagePrefix        = shmdir.Prefix
	pageNameDigits    = 32
	// Whose the FIFOs are: see doorbellName.
	dialerDoorbell   = "dialer"
	listenerDoorbell = "listener"
	leaderOf         = "leader of the " // in front of these
)

// pageDir is where pages are made. Tests change it.
var pageDir = shmdir.Dir + "/"

// errPage is wrapped by all errors about pages.
var errPage = errors.New("shared memory page")

// Page is what two processes on one host share to tell each other that they sleep, and to
// wake each other: memory, and two FIFOs for each direction. The memory also has room for data that
// must outlive a process. A ring over a FIFO costs half of what one over a loopback connection does.
// Providers without a wait object need a Page.
type Page struct {
	name      string   // "" once it is unlinked, or if the other side has to unlink it
	guard     *os.File // keeps others from removing the names; nil without names
	nonce     pageNonce
	mem       []byte // nil once the page is closed
	own, peer *atomic.Uint32
	spill     engine.Spill
	// What the two sides say about themselves: see reach_linux.go.
	ownSelf, peerSelf []byte
	// The FIFOs are open for reading and writing: opening them like this does not wait for the
	// other side. That nothing shows when that side dies does not matter, since the session finds out.
	ownWatcher, ownLeader   sleeper
	peerWatcher, peerLeader ringer
	proc                    *os.File    // see Proc
	dialer                  bool        // this is the dialling side
	self                    atomic.Bool // the other side is in this process
}

// sleeper is a FIFO of this side's.
type sleeper interface {
	engine.Bell
	io.Closer
}

// ringer is a FIFO of the peer's.
type ringer struct {
	file *os.File
	conn syscall.RawConn
}

// ownPages has the pages that dialling sides of this process have made, by their nonces, for as long
// as they have names. It tells a process that dials itself from one that is told its own number.
var ownPages sync.Map // of *Page

// pageNonce is what the dialling side tells the listening side alone. Files whose names others can
// see are recognised by what is derived from it: those who can read that do not learn the nonce, and
// so cannot pass the files of one handshake off as those of another.
type pageNonce [16]byte

func (n pageNonce) derive(label string) [16]byte {
	sum := framing.Derive(n, "fabricnet "+label)
	return [16]byte(sum[:])
}

// mark is what the page begins with.
func (n pageNonce) mark() [16]byte { return n.derive("page") }

// doorbellName returns the name of one side's FIFO. It begins with the page's, which guards it
// (package shmdir), and goes on with what others cannot guess, so that they cannot take it first.
func (n pageNonce) doorbellName(page, side string) string {
	id := n.derive(side)
	return page + "." + hex.EncodeToString(id[:])
}

func newPage(mem []byte, nonce pageNonce, dialer bool) *Page {
	flag := func(offset int) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&mem[offset])) }
	p := &Page{
		mem: mem, nonce: nonce, dialer: dialer,
		own: flag(pageDialerFlag), peer: flag(pageListenerFlag),
		ownSelf: mem[pageDialerSelf:][:selfSize], peerSelf: mem[pageListenerSelf:][:selfSize],
		spill: engine.Spill{Own: mem[pageDialerSpill:][:engine.SpillSize], Peer: mem[pageListenerSpill:][:engine.SpillSize]},
	}
	if !dialer {
		p.spill.Own, p.spill.Peer = p.spill.Peer, p.spill.Own
		p.own, p.peer = p.peer, p.own
		p.ownSelf, p.peerSelf = p.peerSelf, p.ownSelf
	}
	return p
}

// Doorbell returns the flags and the bells, which any goroutine may use until Close.
func (p *Page) Doorbell() engine.Doorbell {
	return engine.Doorbell{Own: p.own, Peer: p.peer, Ring: p.ring, Bell: p.ownLeader, Watcher: p.ownWatcher}
}

// ring rings one of the peer's bells. After Close it does nothing.
func (p *Page) ring(leader bool) {
	if leader {
		p.peerLeader.ring()
	} else {
		p.peerWatcher.ring()
	}
}

// Spill returns the memory for data that waits for receive slots.
func (p *Page) Spill() engine.Spill { return p.spill }

// Proc returns the peer's directory in /proc (proc(5)), which is open for as long as the page is
// mapped. Once the peer's process has ended, nothing can be found in the directory.
func (p *Page) Proc() *os.File { return p.proc }

// checkPageName refuses any name that CreatePage would not have made: it comes from
// a peer and must not lead anywhere else.
func checkPageName(name string) error {
	digits, ok := strings.CutPrefix(name, pagePrefix)
	if !ok || len(digits) != pageNameDigits || strings.Trim(digits, "0123456789abcdef") != "" {
		return fmt.Errorf("%w: bad name %q", errPage, name)
	}
	return nil
}
