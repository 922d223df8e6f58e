package bootstrap

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/engine"
	"github.com/seed202c38ff/fabricnet/internal/fabric/fdbell"
)

func TestPage(t *testing.T) {
	a, err := CreatePage()
	require.NoError(t, err)
	path := pageDir + a.name
	info, err := os.Stat(path)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode())

	b, err := OpenPage(a.name, a.nonce)
	require.NoError(t, err)
	require.NoError(t, a.Unlink())
	assert.Empty(t, pages(t), "neither page nor FIFOs have a name")
	assert.NoError(t, a.Unlink(), "again does nothing")

	assert.True(t, a.own.CompareAndSwap(0, 1))
	assert.True(t, b.peer.CompareAndSwap(1, 0), "b sees a's flag")
	assert.True(t, b.own.CompareAndSwap(0, 1))
	assert.EqualValues(t, 1, a.peer.Load(), "a sees b's flag")
	assert.Zero(t, a.own.Load(), "the flags are apart")
	require.NoError(t, a.Close())
	assert.EqualValues(t, 1, b.own.Load(), "b's mapping is its own")
	require.NoError(t, b.Close())
	require.NoError(t, b.Close(), "again does nothing")
}

func TestPageCloseUnlinks(t *testing.T) {
	a, err := CreatePage()
	require.NoError(t, err)
	path := pageDir + a.name
	assert.FileExists(t, path)
	require.NoError(t, a.Close())
	assert.Empty(t, pages(t))
}

// TestSquatter: another user sees the page's name as soon as it is there, and takes names that begin
// with it. Pages can be made all the same.
func TestSquatter(t *testing.T) {
	defer func(dir string) { pageDir = dir }(pageDir)
	pageDir = t.TempDir() + "/"
	watch, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	require.NoError(t, err)
	_, err = unix.InotifyAddWatch(watch, pageDir, unix.IN_CREATE)
	require.NoError(t, err)
	stop, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	require.NoError(t, err)
	var squatting sync.WaitGroup
	squatting.Go(func() {
		fds := []unix.PollFd{{Fd: int32(watch), Events: unix.POLLIN}, {Fd: int32(stop), Events: unix.POLLIN}}
		for buf := make([]byte, 4096); fds[1].Revents == 0; {
			if _, err := unix.Poll(fds, -1); err != nil || fds[0].Revents == 0 {
				continue
			}
			n, err := unix.Read(watch, buf)
			if !assert.NoError(t, err) {
				return
			}
			for _, name := range created(buf[:n]) {
				if checkPageName(name) == nil {
					_ = unix.Mkfifo(pageDir+name+".dialer", 0o600)
					_ = unix.Mkfifo(pageDir+name+".listener", 0o600)
				}
			}
		}
	})
	for range 200 {
		p, err := CreatePage()
		if assert.NoError(t, err) {
			assert.NoError(t, p.Close())
		}
	}
	_, err = unix.Write(stop, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	require.NoError(t, err)
	squatting.Wait()
	for _, fd := range []int{watch, stop} {
		require.NoError(t, unix.Close(fd))
	}
	left, err := os.ReadDir(pageDir)
	require.NoError(t, err)
	assert.NotEmpty(t, left, "the squatter has seen a page")
}

// created returns the names in events of inotify(7).
func created(events []byte) (names []string) {
	for len(events) >= unix.SizeofInotifyEvent {
		n := binary.NativeEndian.Uint32(events[12:]) // inotify_event.len
		name, rest := events[unix.SizeofInotifyEvent:][:n], events[unix.SizeofInotifyEvent+n:]
		names, events = append(names, strings.TrimRight(string(name), "\x00")), rest
	}
	return names
}

// TestNamesOfDoorbells: the names of the FIFOs cannot be told from the page's.
func TestNamesOfDoorbells(t *testing.T) {
	seen := make(map[string]bool)
	for _, nonce := range []pageNonce{{1}, {2}} {
		for _, side := range doorbells {
			name, ok := strings.CutPrefix(nonce.doorbellName("page", side), "page.") // package shmdir removes these with the page
			require.True(t, ok)
			require.Len(t, name, 32)
			require.False(t, seen[name])
			seen[name] = true
		}
	}
}

// bothPages returns a page as both sides have it.
func bothPages(t *testing.T) (dialer, listener *Page) {
	dialer, err := CreatePage()
	require.NoError(t, err)
	listener, err = OpenPage(dialer.name, dialer.nonce)
	require.NoError(t, err)
	return dialer, listener
}

// TestBells: each ring of a bell wakes the one that sleeps on it, whatever is in the FIFO, whichever side
// rings. Close ends the sleep.
func TestBells(t *testing.T) {
	a, b := bothPages(t)
	bell := func(p *Page, leader bool) engine.Bell {
		if leader {
			return p.Doorbell().Bell
		}
		return p.Doorbell().Watcher
	}
	for _, side := range []struct {
		from, to *Page
		leader   bool
	}{{a, b, true}, {b, a, true}, {a, b, false}, {b, a, false}} {
		for range 70_000 { // a FIFO holds 65536
			side.from.ring(side.leader)
		}
		own := bell(side.to, side.leader)
		for i, ring := range []func(){func() { side.from.Doorbell().Ring(side.leader) }, own.Wake} {
			var due atomic.Bool
			looked := make(chan struct{}, 1000)
			slept := make(chan error)
			go func() {
				slept <- own.Sleep(func() bool {
					looked <- struct{}{}
					return due.Load()
				})
			}()
			<-looked // it sleeps, or is about to
			due.Store(true)
			ring()
			require.NoError(t, <-slept, "ring %d", i)
		}
	}
	ended := make(chan error)
	for _, leader := range []bool{true, false} {
		own := bell(a, leader) // before Close
		go func() { ended <- own.Sleep(func() bool { return false }) }()
	}
	require.NoError(t, a.Close())
	require.Error(t, <-ended)
	require.Error(t, <-ended)
	b.ring(true)
	require.NoError(t, b.Close())
	for _, leader := range []bool{true, false} {
		b.ring(leader)
		bell(b, leader).Wake()
	}
}

// TestWakeDespiteAThief: Wake does not depend on what lies in the FIFO, which a hostile peer may read.
func TestWakeDespiteAThief(t *testing.T) {
	a, b := bothPages(t)
	var over atomic.Bool
	stealing := make(chan struct{})
	var thief sync.WaitGroup
	thief.Go(func() { // as another process would, without Go's netpoller
		_ = b.peerWatcher.conn.Control(func(fd uintptr) {
			var buf [4096]byte
			for close(stealing); !over.Load(); {
				_, _ = unix.Read(int(fd), buf[:])
			}
		})
	})
	<-stealing
	bell := a.Doorbell().Watcher
	for range 200 {
		var due atomic.Bool
		looked, ended := make(chan struct{}, 1), make(chan error)
		go func() {
			for !due.Load() {
				if err := bell.Sleep(func() bool {
					select {
					case looked <- struct{}{}:
					default:
					}
					return due.Load()
				}); err != nil {
					ended <- err
					return
				}
			}
			ended <- nil
		}()
		<-looked
		due.Store(true)
		bell.Wake()
		select {
		case err := <-ended:
			require.NoError(t, err)
		case <-time.After(10 * time.Second):
			t.Fatal("Wake does not end Sleep")
		}
	}
	over.Store(true)
	thief.Wait()
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
}

// TestManyRingsAreFew: a peer that fills the FIFO, which is one system call for it, causes few looks.
func TestManyRingsAreFew(t *testing.T) {
	a, b := bothPages(t)
	var calls atomic.Int32
	ended := make(chan error)
	go func() {
		ended <- b.Doorbell().Watcher.Sleep(func() bool {
			calls.Add(1)
			return false
		})
	}()
	require.Eventually(t, func() bool { return calls.Load() == 1 }, 10*time.Second, time.Millisecond)
	rings, err := 0, error(nil)
	require.NoError(t, a.peerWatcher.conn.Control(func(fd uintptr) { rings, err = unix.Write(int(fd), make([]byte, 1<<15)) }))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return calls.Load() > 1 }, 10*time.Second, time.Millisecond)
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
	require.Error(t, <-ended)
	assert.LessOrEqual(t, int(calls.Load()), 1+rings/1000)
}

// TestRingWakesOnePoller: ringing a doorbell does not wake the process that rings.
func TestRingWakesOnePoller(t *testing.T) {
	p, err := CreatePage()
	require.NoError(t, err)
	assert.ErrorIs(t, p.peerWatcher.file.SetDeadline(time.Time{}), os.ErrNoDeadline, "the runtime does not poll it")
	assert.IsType(t, (*fdbell.Bell)(nil), p.ownWatcher, "the runtime polls it")
	require.NoError(t, p.Close())
}

// TestOpenPageRefusesDoorbells: a doorbell that is not a private FIFO is never written to.
func TestOpenPageRefusesDoorbells(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, path string){
		"no such file": func(*testing.T, string) {},
		"not a FIFO":   func(t *testing.T, path string) { require.NoError(t, os.WriteFile(path, nil, 0o600)) },
		"mode 0622": func(t *testing.T, path string) {
			require.NoError(t, unix.Mkfifo(path, 0o600))
			require.NoError(t, os.Chmod(path, 0o622))
		},
		": not a FIFO": func(t *testing.T, path string) { require.NoError(t, os.Symlink("/dev/null", path)) },
	} {
		for _, side := range doorbells {
			t.Run(name+" "+side, func(t *testing.T) {
				a, err := CreatePage()
				require.NoError(t, err)
				path := pageDir + a.nonce.doorbellName(a.name, side)
				require.NoError(t, os.Remove(path))
				change(t, path)
				_, err = OpenPage(a.name, a.nonce)
				assert.ErrorIs(t, err, errPage)
				assert.ErrorContains(t, err, name)
				_ = a.Close() // one of the names may be missing
				os.Remove(path)
			})
		}
	}
}

func TestOpenPageRefuses(t *testing.T) {
	good, err := CreatePage()
	require.NoError(t, err)
	defer good.Close()
	mark := good.nonce.mark()
	free := pagePrefix + strings.Repeat("0", pageNameDigits)
	path := pageDir + free
	write := func(mode os.FileMode, size int) func(t *testing.T) {
		return func(t *testing.T) {
			require.NoError(t, os.WriteFile(path, append(mark[:], make([]byte, size-16)...), mode))
			require.NoError(t, os.Chmod(path, mode)) // whatever the umask
		}
	}
	tests := []struct {
		name, page string
		make       func(t *testing.T) // makes path
		text       string
	}{
		{name: "a path", page: "../etc/passwd", text: "bad name"},
		{name: "a path of the right length", page: pagePrefix + "/../../../../../../../etc/passwd", text: "bad name"},
		{name: "no name", text: "bad name"},
		{name: "capitals", page: pagePrefix + strings.Repeat("A", 32), text: "bad name"},
		{name: "a NUL", page: pagePrefix + strings.Repeat("a", 31) + "\x00", text: "bad name"},
		{name: "another prefix", page: "fi_shm-" + strings.Repeat("a", 32), text: "bad name"},
		{name: "absent", page: free, text: "no such file"},
		{name: "without a mark", page: free, text: "not made for this handshake", make: func(t *testing.T) {
			require.NoError(t, os.WriteFile(path, make([]byte, pageSize), 0o600))
		}},
		{name: "with the nonce itself", page: free, text: "not made for this handshake", make: func(t *testing.T) {
			require.NoError(t, os.WriteFile(path, append(good.nonce[:], make([]byte, pageSize-16)...), 0o600))
		}},
		{name: "too small", page: free, make: write(0o600, 100), text: fmt.Sprint("100 bytes, not ", pageSize)},
		{name: "too large", page: free, make: write(0o600, 2*pageSize), text: fmt.Sprint(2*pageSize, " bytes")},
		{name: "open to others", page: free, make: write(0o666, pageSize), text: "mode 0666"},
		{name: "a link", page: free, text: "not a regular file", make: func(t *testing.T) {
			require.NoError(t, os.Symlink(pageDir+good.name, path))
		}},
		{name: "a FIFO", page: free, text: "not a regular file", make: func(t *testing.T) {
			require.NoError(t, unix.Mkfifo(path, 0o600))
		}},
		{name: "a directory", page: free, text: "not a regular file", make: func(t *testing.T) {
			require.NoError(t, os.Mkdir(path, 0o700))
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.make != nil {
				tt.make(t)
				defer os.Remove(path)
			}
			p, err := OpenPage(tt.page, good.nonce)
			assert.Nil(t, p)
			assert.ErrorIs(t, err, errPage)
			assert.ErrorContains(t, err, tt.text)
		})
	}
}

// TestPageOfAnotherUser needs the right to give files away (CAP_CHOWN).
func TestPageOfAnotherUser(t *testing.T) {
	p, err := CreatePage()
	require.NoError(t, err)
	defer p.Close()
	err = os.Chown(pageDir+p.name, os.Geteuid()+1, -1)
	if os.IsPermission(err) {
		assert.NotZero(t, os.Geteuid(), "only root gives files away")
		return
	}
	require.NoError(t, err)
	_, err = OpenPage(p.name, p.nonce)
	assert.ErrorContains(t, err, "owned by uid")
}

// TestPageGoesWhateverFails: at whichever step a handshake with a page fails, the page is unmapped
// and its name removed.
func TestPageGoesWhateverFails(t *testing.T) {
	for name, change := range map[string]func(d, l *fakeBinder){
		"not authorised":              func(_, l *fakeBinder) { l.authErr = errFake },
		"the listener has no shm":     func(_, l *fakeBinder) { l.hello.Offers = nil },
		"the listener cannot prepare": func(_, l *fakeBinder) { l.prepare = map[string]error{"shm": errFake} },
		"the dialer cannot prepare":   func(d, _ *fakeBinder) { d.prepare = map[string]error{"shm": errFake} },
		"the fabric does not answer":  func(d, _ *fakeBinder) { d.check = map[string]error{"shm": errFake} },
		"another host":                func(d, _ *fakeBinder) { d.hello.Host = [16]byte{9} },
	} {
		t.Run(name, func(t *testing.T) {
			maps := mappedPages(t)
			d, l := newBinder(offer("shm")), newBinder(offer("shm"))
			change(d, l)
			dnc, lnc := loopback(t)
			dr, lr := meet(t, dnc, lnc, Config{}, Config{}, d, l)
			assert.Error(t, dr.err)
			assert.Error(t, lr.err)
			assert.Equal(t, maps, mappedPages(t), "nothing stays mapped")
		})
	}
}

func TestPageIsUnmapped(t *testing.T) {
	for _, provider := range []string{"shm", "tcp"} {
		maps := mappedPages(t)
		d, l := newBinder(offer("shm"), offer("tcp")), newBinder(offer(provider), offer("shm"))
		dnc, lnc := loopback(t)
		dr, lr := meet(t, dnc, lnc, Config{}, Config{}, d, l)
		require.NoError(t, dr.err)
		require.NoError(t, lr.err)
		assert.Equal(t, provider, dr.b.offer.Provider)
		if provider == "shm" {
			assert.Equal(t, maps+2, mappedPages(t))
		}
		require.NoError(t, dr.s.Close())
		require.NoError(t, lr.s.Close())
		assert.Equal(t, maps, mappedPages(t))
	}
}

// TestNoPage: a dialer that cannot create a page does without the providers that
// need one.
func TestNoPage(t *testing.T) {
	defer func(dir string) { pageDir = dir }(pageDir)
	pageDir = filepath.Join(t.TempDir(), "absent") + "/"
	for _, rest := range [][]framing.Offer{nil, {offer("tcp")}} {
		offers := append([]framing.Offer{offer("shm")}, rest...)
		dnc, lnc := loopback(t)
		dr, lr := meet(t, dnc, lnc, Config{}, Config{}, newBinder(offers...), newBinder(offers...))
		if rest != nil {
			require.NoError(t, dr.err)
			require.NoError(t, lr.err)
			assert.Equal(t, "tcp", lr.b.offer.Provider)
			for _, b := range []*fakeBinding{dr.b, lr.b} {
				require.Len(t, b.refused, 1)
				assert.Contains(t, b.refused[0], "shm: shared memory page: create "+pageDir)
			}
			continue
		}
		assert.ErrorIs(t, dr.err, ErrNoProvider)
		assert.ErrorContains(t, dr.err, "shm: shared memory page: create "+pageDir)
		assert.ErrorIs(t, lr.err, ErrNotRdmanet, "the dialer went away")
	}
}

// mappedPages counts the pages that this process has mapped.
func mappedPages(t *testing.T) int {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	return strings.Count(string(maps), pageDir)
}
