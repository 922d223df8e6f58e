package rdmanet

import (
	"context"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxEvents is how many events wait for a logger at most. Those at debug level, of which
	// peers can cause many, leave half of the room to others.
	maxEvents      = 256
	maxDebugEvents = maxEvents / 2
	// eventsLinger is how long Transport.Close waits for loggers, in all.
	eventsLinger = time.Second
)

// eventQueues pass events on to loggers. Nobody waits for loggers but Transport.Close: they
// are the user's, and may be slow or block.
type eventQueues struct {
	dropped atomic.Uint64

	mu     sync.Mutex // a leaf: events happen with endpoints locked; guards what follows, and the queues
	closed bool
	busy   map[*slog.Logger]*eventQueue // of the loggers that have events to handle
}

// eventQueue holds what one logger has not been told yet. It has a goroutine, and lives until
// it is empty.
type eventQueue struct {
	logger *slog.Logger
	events []event       // the oldest first
	debug  int           // how many of them are below info level
	done   chan struct{} // closed when the logger has returned from the last
}

type event struct {
	ctx context.Context
	slog.Record
}

// tell queues an event for a logger, unless that is nil. It does not block. The context is
// for the logger's Handler, and may end as soon as tell returns.
func (e *eventQueues) tell(ctx context.Context, logger *slog.Logger, level slog.Level, msg string, attrs ...slog.Attr) {
	// Events that are not wanted should not take the place of others. At info level and above
	// the caller may have an endpoint locked: then run asks the logger instead.
	if logger == nil || level < slog.LevelInfo && !logger.Enabled(ctx, level) {
		return
	}
	var caller [1]uintptr
	runtime.Callers(2, caller[:])
	e.mu.Lock()
	defer e.mu.Unlock()
	q := e.busy[logger]
	if e.closed || q != nil && !q.room(level) {
		e.dropped.Add(1)
		return
	}
	r := slog.NewRecord(time.Now(), level, msg, caller[0])
	r.AddAttrs(attrs...)
	isNew := q == nil
	if isNew {
		q = &eventQueue{logger: logger, done: make(chan struct{})}
		if e.busy == nil {
			e.busy = make(map[*slog.Logger]*eventQueue)
		}
		e.busy[logger] = q
	}
	q.push(event{context.WithoutCancel(ctx), r})
	if isNew {
		go e.run(q)
	}
}

// run tells a logger what is in its queue, until the queue is empty.
func (e *eventQueues) run(q *eventQueue) {
	over := false
	defer func() {
		if !over { // the Handler has ended the goroutine (runtime.Goexit)
			go e.run(q)
		}
	}()
	for {
		ev, ok := e.next(q)
		if over = !ok; over {
			return
		}
		if q.logger.Enabled(ev.ctx, ev.Level) {
			_ = q.logger.Handler().Handle(ev.ctx, ev.Record)
		}
	}
}

// next takes the oldest event out of a queue, or ends a queue that is empty.
func (e *eventQueues) next(q *eventQueue) (event, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(q.events) == 0 {
		delete(e.busy, q.logger)
		close(q.done)
		return event{}, false
	}
	return q.pop(), true
}

// close waits for the loggers, for eventsLinger in all. Then it drops what they have not been
// told yet.
func (e *eventQueues) close() {
	timeout, cancel := context.WithTimeout(context.Background(), eventsLinger)
	defer cancel()
	for _, q := range e.queues() {
		select {
		case <-q.done:
		case <-timeout.Done():
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	for _, q := range e.busy {
		e.dropped.Add(uint64(len(q.events)))
		q.events = nil
	}
}

func (e *eventQueues) queues() (list []*eventQueue) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, q := range e.busy {
		list = append(list, q)
	}
	return list
}

// room reports whether another event of a level fits.
func (q *eventQueue) room(level slog.Level) bool {
	return len(q.events) < maxEvents && (level >= slog.LevelInfo || q.debug < maxDebugEvents)
}

func (q *eventQueue) push(ev event) {
	q.events = append(q.events, ev)
	if ev.Level < slog.LevelInfo {
		q.debug++
	}
}

func (q *eventQueue) pop() event {
	ev := q.events[0]
	q.events[0] = event{} // for the garbage collector
	q.events = q.events[1:]
	if ev.Level < slog.LevelInfo {
		q.debug--
	}
	return ev
}
