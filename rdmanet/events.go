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

// What loggers are told; docs/operations.md lists it. Nothing is told of single conns
// above debug level, and nothing that a listener's peers can bring about more often than
// once in eventEvery.
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

// eventEvery is how often an event of one kind is told at its own level.
const eventEvery = 10 * time.Second

// limiter thins events out by what tells their kinds apart.
type limiter struct {
	mu    sync.Mutex
	kinds map[string]*thinned // few: reasons are from a list
}

type thinned struct {
	last   time.Time
	missed int
}

// level is the level of the next event of a kind: its own, with how many were not told
// at that since the last, or debug.
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

// tell tells the link's logger, if there is one, of an event. Peers that come to a
// listener can bring events about as often as they like.
func (l *link) tell(level slog.Level, event string, attrs ...slog.Attr) {
	if l.logger == nil {
		return
	}
	if l.listener != nil && level > slog.LevelDebug {
		own, missed := l.listener.events.level(level, event)
		if level = own; missed > 0 {
			attrs = append(attrs, slog.Int("missed", missed))
		}
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
	l.tell(level, eventPeer, slog.Any("refused", l.refused), slog.Int("version", int(l.version)))
}

// tellLost tells of the end of a link that was up, and how many conns it has cut
// off. A process that has closed its conns may just end.
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

// noMemory is the engine's call, with the endpoint locked.
func (l *link) noMemory() {
	l.t.spawn(func() { l.t.endpoints.dropSpares() }) // for the next conn
	if l.listener != nil {
		l.listener.refuse(l.remote, "memory")
	}
}
