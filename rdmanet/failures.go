package rdmanet

import (
	"errors"
	"fmt"
	"maps"
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
	table map[failureKey]*failure
}

// failureKey is what has failed, and for which dials. A listener can make its own paths fail, which
// must not count for another one.
type failureKey struct {
	// provider, and domain, is what has failed; if it is empty, something other than rdmanet
	// listens. Only dials that would fall back to TCP look for that.
	provider string
	at       linkKey
	secure   bool // by TLS
}

// newFailureKey returns the key for dials that could share a control connection, or could if they
// were of one Dialer with one TLSConfig: some programs make these anew for each dial.
func newFailureKey(provider string, at linkKey) failureKey {
	k := failureKey{provider, at, at.tls != nil}
	k.at.tls, k.at.owner = nil, nil
	return k
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
	// maxFailures bounds the table: names and hosts come from the user.
	maxFailures = 1024
)

// note remembers err for key: for first, or twice as long as the last time, but for
// failureMemory at the longest. It remembers nothing if that is not positive.
func (t *Transport) note(key failureKey, err error, first time.Duration) {
	most := t.failureMemory()
	if most <= 0 {
		return
	}
	fs := &t.failures
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if len(fs.table) >= maxFailures {
		maps.DeleteFunc(fs.table, func(_ failureKey, f *failure) bool { return !f.counts() })
	}
	if fs.table == nil || len(fs.table) >= maxFailures {
		fs.table = make(map[failureKey]*failure)
	}
	pause := first
	if f := fs.table[key]; f != nil {
		pause = max(first, 2*f.pause)
	}
	fs.table[key] = &failure{err, time.Now(), min(pause, most)}
}

// works forgets the failure of key.
func (t *Transport) works(key failureKey) {
	t.failures.mu.Lock()
	defer t.failures.mu.Unlock()
	delete(t.failures.table, key)
}

// recentFailure returns the failure of key that still counts, nil if there is none.
func (t *Transport) recentFailure(key failureKey) *failure {
	t.failures.mu.Lock()
	defer t.failures.mu.Unlock()
	if f := t.failures.table[key]; f != nil && f.counts() {
		return f
	}
	return nil
}

func (f *failure) counts() bool { return time.Since(f.at) < f.pause }

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
func (t *Transport) pathFailed(key failureKey, err error) {
	switch {
	case errors.Is(err, engine.ErrContents):
		t.note(key, err, t.failureMemory())
	case errors.Is(err, bootstrap.ErrSilent):
		t.note(key, err, firstSilence)
	default:
		return
	}
	t.counters.add(t.counters.pathFailures, key.provider)
}

// isForeign takes in how a handshake at an address has ended.
func (t *Transport) isForeign(at linkKey, err error) {
	key := newFailureKey("", at)
	switch {
	case errors.Is(err, ErrNotRdmanet) || errors.Is(err, bootstrap.ErrMute):
		t.note(key, err, firstForeign)
	case err == nil:
		t.works(key)
	}
}

// forgetForeign has the addresses tried again, as those of a server that was ending, and may be back.
func (p *plan) forgetForeign() {
	for _, a := range p.addrs {
		p.t.works(newFailureKey("", linkKey{a, p.key}))
	}
}

// knownForeign returns the error of the last handshake at one of the addresses, if something other
// than rdmanet was found at each of them recently and there is a fallback.
func (p *plan) knownForeign(addrs ...netip.AddrPort) (err error) {
	if p.Fallback == FallbackNone {
		return nil
	}
	for _, a := range addrs {
		f := p.t.recentFailure(newFailureKey("", linkKey{a, p.key}))
		if f == nil {
			return nil
		}
		err = f.err
	}
	return err
}
