package rdmanet

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/seed202c38ff/fabricnet/internal/engine"
	"github.com/seed202c38ff/fabricnet/internal/fabric"
)

// The events that loggers are told of; docs/operations.md lists them. Events about single conns
// are at debug level, unless these are refused or fall back to TCP. Events of one kind that a
// listener's peers can cause are above debug level once in eventEvery at most.
const (
	eventPeer      = "rdmanet: connected with a peer"
	eventLost      = "rdmanet: peer lost"
	eventAbandoned = "rdmanet: endpoint abandoned"
	eventFailed    = "rdmanet: handshake failed"
	eventRefused   = "rdmanet: conn refused"
	eventMemory    = "rdmanet: memory limit reached"
	eventPlain     = "rdmanet: accepted plain TCP"
	eventFallback  = "rdmanet: using plain TCP"
	eventNothing   = "rdmanet: listening for plain TCP only"
)

// eventEvery is the shortest time between two events of one kind at their own level.
const eventEvery = 10 * time.Second

// limiter thins out the events of each kind.
type limiter struct {
	mu    sync.Mutex
	kinds map[string]*thinned // few: reasons come from a list
}

type thinned struct {
	last   time.Time
	missed int
}

// level returns the level of the next event of a kind: its own, with how many have been missed
// at that level since the last one, or debug.
func (l *limiter) level(own slog.Level, kind string) (level slog.Level, missed int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.kinds == nil {
		l.kinds = make(map[string]*thinned)
	}
	k := l.kinds[kind]
	if k == nil {
		k = new(thinned)
		l.kinds[kind] = k
	}
	now := time.Now()
	if !k.last.IsZero() && now.Sub(k.last) < eventEvery {
		k.missed++
		return slog.LevelDebug, 0
	}
	missed = k.missed
	k.last, k.missed = now, 0
	return own, missed
}

// tell tells the link's logger, if there is one, of an event. Peers of a listener can cause
// events as often as they like, so these are thinned out.
func (l *link) tell(level slog.Level, event string, attrs ...slog.Attr) {
	missed := 0
	if l.accepted() && level > slog.LevelDebug {
		level, missed = l.first.listener.events.level(level, event)
	}
	l.tellAt(level, missed, event, attrs...)
}

// tellAt tells the link's logger of an event, at this level. missed is what limiter.level returns.
func (l *link) tellAt(level slog.Level, missed int, event string, attrs ...slog.Attr) {
	if l.logger == nil {
		return
	}
	if missed > 0 {
		attrs = append(attrs, slog.Int("missed", missed))
	}
	l.t.events.tell(context.Background(), l.logger, level, event, append([]slog.Attr{
		slog.String("local", l.local.String()), slog.String("peer", l.remote.String()), slog.String("provider", l.ep.key.provider),
	}, attrs...)...)
}

// announce tells of a new link.
func (l *link) announce() {
	level := slog.LevelDebug
	if len(l.refused) > 0 {
		level = slog.LevelInfo
	}
	l.tell(level, eventPeer, slog.Any("refused", l.refused))
}

// tellLost tells of the end of a link that was up, and of how many conns that cut off. If there
// were none, it does so at debug level: a process that has closed its conns may just end.
func (l *link) tellLost(err error, cut int) {
	level := slog.LevelWarn
	if cut == 0 || errors.Is(err, engine.ErrEndpointClosed) || errors.Is(err, net.ErrClosed) { // Transport.Close
		level = slog.LevelDebug
	}
	l.tell(level, eventLost, slog.Any("reason", err), slog.Int("conns", cut))
	if errors.Is(err, fabric.ErrAbandoned) {
		l.tellAbandoned()
	}
}

// tellAbandoned tells that the link's endpoint was abandoned, once.
func (l *link) tellAbandoned() {
	l.abandoned.Do(func() { l.tell(slog.LevelWarn, eventAbandoned) })
}

// noMemory is called by the engine, with the endpoint locked.
func (l *link) noMemory() {
	l.t.spawn(func() { l.t.endpoints.dropSpare(nil) }) // for the next conn
	if l.accepted() {
		l.first.listener.refuse(l.remote, "memory")
	}
}
