package rdmanet

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/seed202c38ff/fabricnet/internal/bootstrap"
	"github.com/seed202c38ff/fabricnet/internal/engine"
)

// failures is what a Transport remembers of what did not work, so that it costs its time
// once and not with each Dial. The zero value is ready to use.
type failures struct {
	mu    sync.Mutex
	paths map[pathKey]*failure
	// foreign has the addresses at which something else than rdmanet listens. Only dials
	// that would fall back to TCP ask for them.
	foreign map[nameKey]*failure
}

// pathKey is where a provider has failed: another address here or there may be another
// device or another way.
type pathKey struct {
	provider      string // and domain
	local, remote netip.Addr
}

// failure is one that is remembered.
type failure struct {
	err   error
	at    time.Time
	pause time.Duration // for how long it counts
}

const (
	// A fabric that is silent may be back soon, as after a restart of what is on the way;
	// each failure in a row doubles the time.
	firstSilence = 5 * time.Second
	firstForeign = 30 * time.Second
	// maxFailures bounds each of the two tables: names and hosts come from the user.
	maxFailures = 1024
)

// note remembers that err came, if it is to be remembered at all.
func note[K comparable](table *map[K]*failure, key K, err error, first, most time.Duration) {
	if most <= 0 || first <= 0 {
		return
	}
	if *table == nil || len(*table) >= maxFailures {
		*table = make(map[K]*failure)
	}
	pause := first
	if f := (*table)[key]; f != nil {
		pause = max(first, 2*f.pause)
	}
	(*table)[key] = &failure{err, time.Now(), min(pause, most)}
}

// recent returns a failure that counts still, nil if there is none.
func (f *failure) recent() *failure {
	if f == nil || time.Since(f.at) >= f.pause {
		return nil
	}
	return f
}

func (f *failure) String() string {
	ago, left := time.Since(f.at), f.pause-time.Since(f.at)
	return fmt.Sprintf("%v (%v ago; tried again in %v)", f.err, ago.Round(time.Second), left.Round(time.Second))
}

// memory is how long failures are remembered at most.
func (t *Transport) failureMemory() time.Duration {
	return orDefault(t.FailureMemory, DefaultFailureMemory)
}

// pathFailed takes in why a provider was not used: wrong contents are remembered for as
// long as anything, silence for longer the more often it comes, and the rest not at all,
// since it costs no time or may pass.
func (t *Transport) pathFailed(key pathKey, err error) {
	most := t.failureMemory()
	first := time.Duration(0)
	switch {
	case errors.Is(err, engine.ErrContents):
		first = most
	case errors.Is(err, bootstrap.ErrSilent):
		first = min(firstSilence, most)
	default:
		return
	}
	t.counters.add(t.counters.pathFailures, key.provider)
	t.failures.mu.Lock()
	defer t.failures.mu.Unlock()
	note(&t.failures.paths, key, err, first, most)
}

// pathWorks forgets what has failed there.
func (t *Transport) pathWorks(key pathKey) {
	t.failures.mu.Lock()
	defer t.failures.mu.Unlock()
	delete(t.failures.paths, key)
}

// pathFailure says what has failed there lately.
func (t *Transport) pathFailure(key pathKey) *failure {
	t.failures.mu.Lock()
	defer t.failures.mu.Unlock()
	return t.failures.paths[key].recent()
}

// isForeign takes in how a handshake at an address has ended.
func (t *Transport) isForeign(address nameKey, err error) {
	t.failures.mu.Lock()
	defer t.failures.mu.Unlock()
	switch {
	case errors.Is(err, ErrNotRdmanet) || errors.Is(err, bootstrap.ErrMute):
		note(&t.failures.foreign, address, err, min(firstForeign, t.failureMemory()), t.failureMemory())
	case err == nil:
		delete(t.failures.foreign, address)
	}
}

// knownForeign returns the error of the last handshake at an address, if something else
// than rdmanet was there lately.
func (t *Transport) knownForeign(address nameKey) error {
	t.failures.mu.Lock()
	defer t.failures.mu.Unlock()
	if f := t.failures.foreign[address].recent(); f != nil {
		return f.err
	}
	return nil
}
