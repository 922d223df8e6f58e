package rdmanet_test

import (
	"fmt"
	"net/netip"
	"runtime/debug"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/internal/fabric/ofifabric"
	"github.com/seed202c38ff/fabricnet/internal/fabric/simfabric"
	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
	"github.com/seed202c38ff/fabricnet/pool"
)

// onWatched runs a test over simulated fabrics and over the real providers. Each of them
// checks how memory is used: every operation is on registered memory, and no memory is
// deregistered under an operation.
func onWatched(t *testing.T, test func(t *testing.T, f fabric.Fabric, provider string)) {
	t.Helper()
	for _, p := range personalities {
		t.Run("simulated "+p.Provider, func(t *testing.T) {
			n := simfabric.New(simfabric.Config{Seed: 1, Personality: p})
			t.Cleanup(func() {
				s := n.Stats()
				assert.Empty(t, s.Misuse)
				assert.Zero(t, s.Endpoints, "endpoints")
				assert.Zero(t, s.Regions, "regions")
			})
			test(t, n, p.Provider)
		})
	}
	for _, name := range rdmatest.Providers {
		t.Run(name, func(t *testing.T) {
			w := &watcher{Fabric: ofifabric.New(), endpoints: make(map[*watchedEndpoint]struct{})}
			t.Cleanup(func() {
				w.mu.Lock()
				defer w.mu.Unlock()
				assert.Empty(t, w.fault)
				assert.Empty(t, w.endpoints, "endpoints")
			})
			test(t, w, name)
		})
	}
}

// watcher does for libfabric what simfabric does by itself: see simfabric.Stats.
type watcher struct {
	fabric.Fabric
	mu        sync.Mutex
	fault     string // the first
	beneath   string // where the first region was closed under a peer's write, which is right only if a peer has failed
	endpoints map[*watchedEndpoint]struct{}
}

// flightKey tells an endpoint's operations in flight apart.
type flightKey struct {
	recv bool
	tag  uint32
}

type watchedEndpoint struct {
	fabric.Endpoint
	w *watcher

	// Guarded by w.mu.
	regions map[*watchedRegion]struct{}
	flying  map[flightKey]fabric.Op
	down    bool
	at      string // where memory was taken from under an operation without Shutdown
}

type watchedRegion struct {
	pool.Region
	e      *watchedEndpoint
	mem    []byte
	access pool.Access
}

func (w *watcher) Open(provider string, src netip.Addr) (fabric.Endpoint, error) {
	ep, err := w.Fabric.Open(provider, src)
	if err != nil {
		return nil, err
	}
	e := &watchedEndpoint{
		Endpoint: ep, w: w,
		regions: make(map[*watchedRegion]struct{}), flying: make(map[flightKey]fabric.Op),
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.endpoints[e] = struct{}{}
	return e, nil
}

// closedBeneath returns where a region was closed under a peer's write, "" if none was.
func (w *watcher) closedBeneath() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.beneath
}

// wrong notes the first fault. w.mu must be held.
func (w *watcher) wrong(format string, args ...any) {
	if w.fault == "" {
		w.fault = fmt.Sprintf(format, args...) + "\n" + string(debug.Stack())
	}
}

func (e *watchedEndpoint) Register(mem []byte, access pool.Access) (pool.Region, error) {
	r, err := e.Endpoint.Register(mem, access)
	if err != nil {
		return nil, err
	}
	e.w.mu.Lock()
	defer e.w.mu.Unlock()
	region := &watchedRegion{r, e, mem, access}
	e.regions[region] = struct{}{}
	return region, nil
}

func (e *watchedEndpoint) Exchange(ops []fabric.Op, done []fabric.Completion) (posted, reaped int, err error) {
	e.post(ops)
	posted, reaped, err = e.Endpoint.Exchange(ops, done)
	e.w.mu.Lock()
	defer e.w.mu.Unlock()
	for _, op := range ops[posted:] {
		delete(e.flying, flightKey{op.Kind == fabric.Recv, op.Tag})
	}
	for _, d := range done[:reaped] {
		if d.Kind != fabric.RemoteWrite && d.Kind != 0 {
			delete(e.flying, flightKey{d.Kind == fabric.Recv, d.Tag})
		}
	}
	return posted, reaped, err
}

// post notes operations before anybody else can reap them.
func (e *watchedEndpoint) post(ops []fabric.Op) {
	e.w.mu.Lock()
	defer e.w.mu.Unlock()
	if e.at != "" || e.down {
		e.w.wrong("endpoint used after its memory was given back: %s", e.at)
	}
	for _, op := range ops {
		if op.Kind == fabric.Inject {
			continue
		}
		key := flightKey{op.Kind == fabric.Recv, op.Tag}
		if _, twice := e.flying[key]; twice {
			e.w.wrong("operation %d of kind %d is in flight already", op.Tag, op.Kind)
		}
		e.flying[key] = op
		if !e.registered(op.Buf) {
			e.w.wrong("operation of kind %d on %d bytes that are not registered", op.Kind, len(op.Buf))
		}
	}
}

func (e *watchedEndpoint) registered(mem []byte) bool {
	for r := range e.regions {
		if r.contains(mem) {
			return true
		}
	}
	return false
}

func (r *watchedRegion) contains(mem []byte) bool {
	at := address(mem) - address(r.mem)
	return at <= uintptr(len(r.mem)) && uintptr(len(mem)) <= uintptr(len(r.mem))-at
}

func address(mem []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(mem))) }

func (r *watchedRegion) Close() error {
	r.e.closing(r)
	return r.Region.Close()
}

func (e *watchedEndpoint) closing(r *watchedRegion) {
	w := e.w
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(e.regions, r)
	if e.down {
		return
	}
	for _, op := range e.flying {
		if !r.contains(op.Buf) {
			continue
		}
		if !e.Attr().PerPeer {
			w.wrong("region of %d bytes closed under operation %d of kind %d", len(r.mem), op.Tag, op.Kind)
		}
		// If two endpoints of this process share a mapping, the first one to go is not shut
		// down, but must be left alone from here on.
		e.at = string(debug.Stack())
	}
	if r.access != pool.AccessRemoteWrite || w.beneath != "" {
		return
	}
	for other := range w.endpoints {
		for _, op := range other.flying {
			if (op.Kind == fabric.Write || op.Kind == fabric.WriteData) && op.Key == r.Key() {
				w.beneath = string(debug.Stack())
			}
		}
	}
}

func (e *watchedEndpoint) Shutdown() error {
	err := e.Endpoint.Shutdown()
	e.w.mu.Lock()
	defer e.w.mu.Unlock()
	e.down = err == nil
	return err
}

func (e *watchedEndpoint) Close() error {
	err := e.Endpoint.Close()
	e.w.mu.Lock()
	defer e.w.mu.Unlock()
	if err == nil {
		delete(e.w.endpoints, e)
	}
	for r := range e.regions {
		e.w.wrong("endpoint closed with a region of %d bytes open", len(r.mem))
	}
	return err
}

// Unlink is a method that endpoints over libfabric have besides those of the interface.
func (e *watchedEndpoint) Unlink() error { return e.Endpoint.(interface{ Unlink() error }).Unlink() }
