package rdmanet

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed202c38ff/fabricnet/internal/engine"
	"github.com/seed202c38ff/fabricnet/internal/fabric"
)

// Limits of the values of fields. Those of durations are there to notice a number without a
// unit, which counts nanoseconds.
const (
	minMemoryLimit = 64 << 10 // bytes; conns need more than that, how much depends on the provider
	minDuration    = time.Millisecond
	// minDeadAfter is five times the shortest interval at which peers send signs of life.
	minDeadAfter = 100 * time.Millisecond
	// maxDeadAfter is well below what the kernel accepts for TCP, in seconds and in
	// milliseconds. Beyond that it would refuse, and its default would be in force.
	maxDeadAfter = 24 * time.Hour
	// maxReceiveWindow is for small data: several are mapped at a time.
	maxReceiveWindow = 16 << 20
	minPollTime      = time.Microsecond
	maxPollTime      = time.Second
	maxBacklog       = 1 << 20 // the backlog is allocated at once
)

// configError is an ErrConfig that names the field, or the variable, and says what is wrong
// with it.
type configError struct{ field, problem string }

func (e *configError) Error() string { return "rdmanet: " + e.field + ": " + e.problem }
func (e *configError) Unwrap() error { return ErrConfig }

func invalid(field, format string, args ...any) error {
	return &configError{field, fmt.Sprintf(format, args...)}
}

// setting is a number that somebody has chosen. 0 stands for the default.
type setting struct {
	field     string
	value     int64
	low, high int64 // the least and the most, besides 0
	negative  bool  // negative numbers mean something, too
	standard  int64 // the default
	show      func(int64) string
}

func inBytes(n int64) string { return strconv.FormatInt(n, 10) + " bytes" }
func plain(n int64) string   { return strconv.FormatInt(n, 10) }
func inTime(n int64) string  { return time.Duration(n).String() }

func (s *setting) check() error {
	const advice = "%s is %s than %s, the %s; use 0 for the default, %s"
	switch {
	case s.value == 0 || s.value < 0 && s.negative:
		return nil
	case s.value < s.low:
		return invalid(s.field, advice, s.show(s.value), "less", s.show(s.low), "least", s.show(s.standard))
	case s.value > s.high:
		return invalid(s.field, advice, s.show(s.value), "more", s.show(s.high), "most", s.show(s.standard))
	}
	return nil
}

// checkAll returns an error for the first setting that is out of range.
func checkAll(list []setting) error {
	for i := range list {
		if err := list[i].check(); err != nil {
			return err
		}
	}
	return nil
}

// settings lists the numbers of a Transport.
func (t *Transport) settings() []setting {
	const unlimited = math.MaxInt64
	return []setting{
		{"Transport.MemoryLimit", t.MemoryLimit, minMemoryLimit, unlimited, false, DefaultMemoryLimit, inBytes},
		{"Transport.HeartbeatInterval", int64(t.HeartbeatInterval), int64(minDuration), int64(maxDeadAfter), false, int64(DefaultHeartbeatInterval), inTime},
		{"Transport.DeadAfter", int64(t.DeadAfter), int64(minDeadAfter), int64(maxDeadAfter), false, int64(DefaultDeadAfter), inTime},
		{"Transport.IdlePeerTimeout", int64(t.IdlePeerTimeout), int64(minDuration), unlimited, true, int64(DefaultIdlePeerTimeout), inTime},
		{"Transport.MaxShmPeers", int64(t.MaxShmPeers), 1, unlimited, false, DefaultMaxShmPeers, plain},
		{"Transport.ReceiveWindow", int64(t.ReceiveWindow), engine.MinWindow, maxReceiveWindow, false, DefaultReceiveWindow, inBytes},
		{"Transport.LandingRing", int64(t.LandingRing), engine.MinRing, engine.MaxRing, false, DefaultLandingRing, inBytes},
		{"Transport.FailureMemory", int64(t.FailureMemory), int64(minDuration), unlimited, true, int64(DefaultFailureMemory), inTime},
		{"Transport.PollTime", int64(t.PollTime), int64(minPollTime), int64(maxPollTime), true, int64(DefaultPollTime), inTime},
	}
}

// configure takes over what the environment says, and returns what is wrong.
func (t *Transport) configure() (err error) {
	if err := checkAll(t.settings()); err != nil {
		return err
	}
	if t.limit, err = t.memoryLimit(); err != nil {
		return err
	}
	if t.poll, err = t.pollTime(); err != nil {
		return err
	}
	return t.contradiction()
}

// contradiction returns an error if settings contradict each other.
func (t *Transport) contradiction() error {
	const tooLarge = "%d bytes do not fit the memory limit of %d bytes, which all conns share; lower it, or raise Transport.MemoryLimit"
	dead := orDefault(t.DeadAfter, DefaultDeadAfter)
	limit := orDefault(t.limit, DefaultMemoryLimit)
	switch beat := t.heartbeat(); {
	case beat >= dead:
		return invalid("Transport.HeartbeatInterval", "%v is not below Transport.DeadAfter, %v; use a third of that", beat, dead)
	case int64(t.ReceiveWindow) > limit:
		return invalid("Transport.ReceiveWindow", tooLarge, t.ReceiveWindow, limit)
	case int64(t.LandingRing) > limit:
		return invalid("Transport.LandingRing", tooLarge, t.LandingRing, limit)
	case t.LandingRing&(t.LandingRing-1) != 0:
		return invalid("Transport.LandingRing", "%d is not a power of two; use one from %d to %d", t.LandingRing, engine.MinRing, engine.MaxRing)
	}
	return nil
}

// validate returns what is wrong with d, or with its Transport.
func (d *Dialer) validate(t *Transport) error {
	if t.invalid != nil {
		return t.invalid
	}
	if d.Fallback != FallbackNone && d.Fallback != FallbackTCP {
		return invalid("Dialer.Fallback", "there is no %v; use FallbackNone or FallbackTCP", d.Fallback)
	}
	switch a := d.LocalAddr.(type) {
	case nil, *net.TCPAddr:
	default:
		return invalid("Dialer.LocalAddr", "a %T is no address of a control connection; use a *net.TCPAddr", a)
	}
	return t.checkProviders("Dialer.Providers", d.Providers)
}

// validate returns what is wrong with lc, or with its Transport.
func (lc *ListenConfig) validate(t *Transport) error {
	if t.invalid != nil {
		return t.invalid
	}
	err := checkAll([]setting{
		{"ListenConfig.Backlog", int64(lc.Backlog), 1, maxBacklog, false, DefaultBacklog, plain},
		{"ListenConfig.MaxPeers", int64(lc.MaxPeers), 1, maxBacklog, false, DefaultMaxPeers, plain},
		{"ListenConfig.MaxPeersPerHost", int64(lc.MaxPeersPerHost), 1, maxBacklog, false, DefaultMaxPeersPerHost, plain},
		{"ListenConfig.HandshakeTimeout", int64(lc.HandshakeTimeout), int64(minDuration), math.MaxInt64, false, int64(DefaultHandshakeTimeout), inTime},
	})
	if err != nil {
		return err
	}
	// tls.Listen checks this, too; otherwise crypto/tls fails at each handshake.
	if c := lc.TLSConfig; c != nil && len(c.Certificates) == 0 && c.GetCertificate == nil && c.GetConfigForClient == nil {
		return invalid("ListenConfig.TLSConfig", "it has no certificate; set Certificates, GetCertificate or GetConfigForClient")
	}
	if _, err := lc.nameRule(); err != nil {
		return err
	}
	return t.checkProviders("ListenConfig.Providers", lc.Providers)
}

// checkProviders returns an error for a misspelt name in list, the value of field, or in what
// takes its place if it is empty. libfabric is asked for names that are not known here.
func (t *Transport) checkProviders(field string, list []string) error {
	if len(list) == 0 {
		field = providersVariable
	}
	for _, w := range t.wishes(list) {
		provider, _ := fabric.Split(w.name)
		if known(provider, nil) {
			continue
		}
		infos, ok := t.kept(netip.Addr{})
		if !ok {
			var err error
			if infos, err = t.available(netip.Addr{}); err != nil && !errors.Is(err, fabric.ErrNoProvider) {
				return nil // whoever needs a provider reports this
			}
		}
		if !known(provider, infos) {
			return invalid(field, "unknown provider %q; known are %s; this machine offers %s", provider, knownNames(), names(infos))
		}
	}
	return nil
}

func knownNames() string { return strings.Join(slices.Concat([]string{auto}, automatic, named), ", ") }
