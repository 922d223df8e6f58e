//go:build linux && cgo && hosts

package systemtest

import (
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// wire joins the hosts instead of a cable. This process carries the packets between two
// TUN devices, with a delay, and loses some of them. The kernel's own netem can do that,
// too, but many kernels come without it.
type wire struct {
	delay     time.Duration
	loss      float64
	all, lost atomic.Int64
}

// The main thread stays with the main goroutine. Otherwise a goroutine of openTUN could
// run on it, take it to the other host, and end it there. /proc/self is where the main
// thread is.
func init() { runtime.LockOSThread() }

// wireQueue is how many packets may be on their way in each direction, as with netem.
const wireQueue = 1000

func (h *farHost) wire(delay time.Duration, loss float64) *wire {
	h.t.Helper()
	w := &wire{delay: delay, loss: loss}
	near := openTUN(h.t, "/proc/self/ns/net")
	far := openTUN(h.t, h.namespace())
	h.address()
	var wg sync.WaitGroup
	wg.Go(func() { w.carry(near, far, 1) })
	wg.Go(func() { w.carry(far, near, 2) })
	h.t.Cleanup(func() {
		_ = near.Close()
		_ = far.Close()
		wg.Wait()
	})
	return w
}

// carry moves packets until one of the devices is closed.
func (w *wire) carry(from, to *os.File, seed uint64) {
	type packet struct {
		due  time.Time
		data []byte
	}
	queue := make(chan packet, wireQueue)
	defer close(queue)
	go func() {
		for p := range queue {
			time.Sleep(time.Until(p.due))
			_, _ = to.Write(p.data)
		}
	}()
	rng := rand.New(rand.NewPCG(seed, 0))
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		w.all.Add(1)
		if rng.Float64() < w.loss || len(queue) == cap(queue) {
			w.lost.Add(1)
			continue
		}
		queue <- packet{time.Now().Add(w.delay), append([]byte(nil), buf[:n]...)}
	}
}

// openTUN makes one end of the wire, in a network namespace.
func openTUN(t require.TestingT, namespace string) *os.File {
	type result struct {
		fd  int
		err error
	}
	opened := make(chan result)
	go func() {
		runtime.LockOSThread() // for good: the thread changes namespaces, and must end with the goroutine
		fd, err := tunIn(namespace)
		opened <- result{fd, err}
	}()
	r := <-opened
	require.NoError(t, r.err, "a TUN device (the kernel needs CONFIG_TUN)")
	return os.NewFile(uintptr(r.fd), "tun")
}

func tunIn(namespace string) (fd int, err error) {
	ns, err := unix.Open(namespace, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(ns)
	if err := unix.Setns(ns, unix.CLONE_NEWNET); err != nil {
		return 0, err
	}
	fd, err = unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	req, err := unix.NewIfreq(device)
	if err != nil {
		return 0, err
	}
	req.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	return fd, unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
}
