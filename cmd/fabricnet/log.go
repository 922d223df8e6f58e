package main

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"sync/atomic"
	"time"
)

const (
	// maxLines is how many lines may wait for a slow reader.
	maxLines = 1000
	// linesLinger is how long close waits for them to be written.
	linesLinger = time.Second
)

// lines passes lines on to standard error. Only close waits for them: whatever reads standard error
// may be slow, stop, or end.
type lines struct {
	w     io.Writer
	queue chan []byte
	lost  atomic.Uint64 // lines for which there was no room, or that could not be written

	end, ended chan struct{}
}

func newLines(w io.Writer) *lines {
	l := &lines{w: w, queue: make(chan []byte, maxLines), end: make(chan struct{}), ended: make(chan struct{})}
	go l.run()
	return l
}

// Write takes a line and does not block.
func (l *lines) Write(line []byte) (int, error) {
	select {
	case l.queue <- bytes.Clone(line):
	default:
		l.lost.Add(1)
	}
	return len(line), nil
}

// close gets the lines written that are still waiting, if that takes no longer than linesLinger.
func (l *lines) close() {
	close(l.end)
	select {
	case <-l.ended:
	case <-time.After(linesLinger):
	}
}

func (l *lines) run() {
	defer close(l.ended)
	var said uint64 // how many of the lost lines were reported
	for {
		select {
		case line := <-l.queue:
			said = l.pass(line, said)
		case <-l.end:
			if len(l.queue) == 0 {
				return
			}
			said = l.pass(<-l.queue, said)
		}
	}
}

// pass writes a line, and then how many lines were lost since that was last reported. It waits with
// the latter until half of the room is free, or a slow reader would get little else.
func (l *lines) pass(line []byte, said uint64) uint64 {
	if _, err := l.w.Write(line); err != nil {
		l.lost.Add(1)
		return said
	}
	lost := l.lost.Load()
	if lost == said || len(l.queue) > maxLines/2 {
		return said
	}
	r := slog.NewRecord(time.Now(), slog.LevelWarn, "log lines were lost: who reads them is too slow", 0)
	r.AddAttrs(slog.Uint64("lines", lost-said))
	if slog.NewTextHandler(l.w, nil).Handle(context.Background(), r) != nil {
		return said
	}
	return lost
}
