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

// failures is what a Transport remembers of what did not work, so that this costs its time
// once and not in each Dial. The zero value is ready to use.
type failures struct {
	mu    sync.Mutex
	paths map[pathKey]*failure
	// foreign has the addresses at which something other than rdmanet listens. Only dials
	// that would fall back to TCP look there.
	foreign map[nameKey]*failure
}

// pathKey is where a provider has failed: with another address at either end, the device or
// the route may be another.
type pathKey struct {
	provider      string // and domain
	local, remote netip.Addr
	netns         netns
}

// failure is a failure that is remembered.
type failure struct {
	err   error
	at    time.Time
	pause time.Duration // for how long it counts
}

const (
	// A fabric that is silent may be back soon, as after a restart of something on the way.
	// Each further failure in a row doubles the time.
	firstSilence = 5 * time.Second
	firstForeign = 30 * time.Second
	// maxFailures bounds each of the two tables: names and hosts come from the user.
	maxFailures = 1024
)

// note remembers err for key: for first, or twice as long as the last time, but for most at the
// longest. It remembers nothing if either of these is not positive.
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

// recent returns f if it still counts, and nil otherwise.
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

// failureMemory returns how long failures are remembered at most.
func (t *Transport) failureMemory() time.Duration {
	return orDefault(t.FailureMemory, DefaultFailureMemory)
}

// pathFailed takes in why a provider was not used. Wrong contents are remembered for the whole
// failureMemory, silence for longer the more often it occurs, and the rest not at all, since
// it costs no time or may pass.
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

// pathWorks forgets the failure of a path.
func (t *Transport) pathWorks(key pathKey) {
	t.failures.mu.Lock()
	defer t.failures.mu.Unlock()
	delete(t.failures.paths, key)
}

// pathFailure returns the recent failure of a path, nil if there is none.
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

// knownForeign returns the error of the last handshake at an address, if something other than
// rdmanet was found there recently.
func (t *Transport) knownForeign(address nameKey) error {
	t.failures.mu.Lock()
	defer t.failures.mu.Unlock()
	if f := t.failures.foreign[address].recent(); f != nil {
		return f.err
	}
	return nil
}
