package rendezvous

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"unsafe"
)

// Layout of the page of sleeping flags: the nonce at the start, a flag for each
// side on a pair of cache lines of its own, since prefetchers fetch pairs.
const (
	pageSize         = 4096
	pageDialerFlag   = 64
	pageListenerFlag = 192
	pagePrefix       = "fabricnet-"
	pageNameDigits   = 32
)

// pageDir is where the providers that need pages keep their own regions, too:
// processes that share it can use them. Tests move it.
var pageDir = "/dev/shm/"

// errPage is what all errors about pages wrap.
var errPage = errors.New("shared memory page")

// Page is the memory that two processes on one host share to tell each other
// that they sleep: providers without a wait object need it. Own and Peer may be
// used by any goroutine until Close.
type Page struct {
	name      string // "" once it is unlinked, or if it is the other side's to unlink
	nonce     [16]byte
	mem       []byte // nil once it is closed
	own, peer *atomic.Uint32
}

func newPage(mem []byte, nonce [16]byte, own, peer int) *Page {
	flag := func(offset int) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&mem[offset])) }
	return &Page{mem: mem, nonce: nonce, own: flag(own), peer: flag(peer)}
}

// Own is this side's flag: 1 means "asleep, ring". The peer clears it.
func (p *Page) Own() *atomic.Uint32 { return p.own }

// Peer is the other side's flag: who changes it from 1 to 0 rings.
func (p *Page) Peer() *atomic.Uint32 { return p.peer }

// checkPageName refuses whatever CreatePage would not have made: the name comes
// from a peer and must not lead anywhere else.
func checkPageName(name string) error {
	digits, ok := strings.CutPrefix(name, pagePrefix)
	if !ok || len(digits) != pageNameDigits || strings.Trim(digits, "0123456789abcdef") != "" {
		return fmt.Errorf("%w: bad name %q", errPage, name)
	}
	return nil
}
