package bootstrap

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/seed202c38ff/fabricnet/internal/shmdir"
)

// Layout of the page of sleeping flags: the nonce at the start, a flag for each
// side on a pair of cache lines of its own, since prefetchers fetch pairs, and who
// each side is.
const (
	pageSize         = 4096
	pageDialerFlag   = 64
	pageListenerFlag = 192
	pageDialerSelf   = 320
	pageListenerSelf = 384
	selfSize         = 32
	pagePrefix       = shmdir.Prefix
	pageNameDigits   = 32
	// What the names of the FIFOs have after the page's.
	dialerDoorbell   = ".dialer"
	listenerDoorbell = ".listener"
)

// pageDir is where pages are. Tests move it.
var pageDir = shmdir.Dir + "/"

// errPage is what all errors about pages wrap.
var errPage = errors.New("shared memory page")

// Page is what two processes on one host share to tell each other that they
// sleep, and to wake each other: memory, and a FIFO for each direction, which is a
// doorbell that costs half of what one over a loopback connection does. Providers
// without a wait object need it. Own, Peer and Ring may be used by any goroutine
// until Close.
type Page struct {
	name      string   // "" once it is unlinked, or if it is the other side's to unlink
	guard     *os.File // what keeps others from removing the names; nil without them
	nonce     [16]byte
	mem       []byte // nil once it is closed
	own, peer *atomic.Uint32
	// Who the two sides are: see reach_linux.go.
	ownSelf, peerSelf []byte
	// Both FIFOs are open for reading and writing: such an open waits for nobody,
	// and the other side's death is for the session to find.
	ownDoorbell, peerDoorbell *os.File
	peerConn                  syscall.RawConn // of peerDoorbell
	proc                      *os.File        // see Proc
}

func newPage(mem []byte, nonce [16]byte, dialer bool) *Page {
	flag := func(offset int) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&mem[offset])) }
	p := &Page{
		mem: mem, nonce: nonce,
		own: flag(pageDialerFlag), peer: flag(pageListenerFlag),
		ownSelf: mem[pageDialerSelf:][:selfSize], peerSelf: mem[pageListenerSelf:][:selfSize],
	}
	if !dialer {
		p.own, p.peer = p.peer, p.own
		p.ownSelf, p.peerSelf = p.peerSelf, p.ownSelf
	}
	return p
}

// Own is this side's flag: whether it sleeps, and what the peer is to ring for (SPEC.md section 8).
func (p *Page) Own() *atomic.Uint32 { return p.own }

// Peer is the other side's flag: who changes it to 0 rings.
func (p *Page) Peer() *atomic.Uint32 { return p.peer }

// Proc is the peer's directory in /proc (proc(5)), open for as long as the page is mapped, or
// nil. Once its process has ended nothing is found there.
func (p *Page) Proc() *os.File { return p.proc }

// checkPageName refuses whatever CreatePage would not have made: the name comes
// from a peer and must not lead anywhere else.
func checkPageName(name string) error {
	digits, ok := strings.CutPrefix(name, pagePrefix)
	if !ok || len(digits) != pageNameDigits || strings.Trim(digits, "0123456789abcdef") != "" {
		return fmt.Errorf("%w: bad name %q", errPage, name)
	}
	return nil
}
