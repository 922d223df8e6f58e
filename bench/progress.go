package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/term"

	"github.com/seed202c38ff/fabricnet/bench/internal/load"
	"github.com/seed202c38ff/fabricnet/bench/internal/workload"
)

// progress shows how far a run is: on a terminal in one line that it keeps up to date, elsewhere in
// a line for every round.
type progress struct {
	w      io.Writer
	width  int // of the terminal, 0 if it is none
	rounds int
	rows   int // in all rounds
	done   int
	now    func() time.Time
	began  time.Time
	left   time.Duration // of the plan's estimate
	used   time.Duration
}

func newProgress(w *os.File, p plan, cases []workload.Case) *progress {
	b := &progress{w: w, rounds: p.rounds, now: time.Now, began: time.Now(), left: p.estimate()}
	b.rows = p.rounds * len(cases)
	if term.IsTerminal(int(w.Fd())) {
		b.width = 80
		if width, _, err := term.GetSize(int(w.Fd())); err == nil {
			b.width = width
		}
	}
	fmt.Fprintf(w, "%d rows, %d rounds of %v each, about %v in all\n", len(cases), p.rounds, p.time, b.remaining())
	return b
}

// remaining returns what is left of the estimate, at the pace so far.
func (b *progress) remaining() time.Duration {
	left := float64(b.left)
	if b.used > 0 {
		left *= float64(b.now().Sub(b.began)) / float64(b.used)
	}
	return time.Duration(left).Round(time.Second)
}

// round begins a round, counted from 0.
func (b *progress) round(n int) {
	if b.width > 0 {
		return
	}
	if n == 0 {
		fmt.Fprintf(b.w, "round %d of %d\n", n+1, b.rounds)
		return
	}
	fmt.Fprintf(b.w, "round %d of %d, %v left\n", n+1, b.rounds, b.remaining())
}

func (b *progress) begin(j load.Job) {
	if b.width == 0 {
		return
	}
	text := fmt.Sprintf("%d of %d, round %d of %d, %v left: %v", b.done+1, b.rows, j.Round, b.rounds, b.remaining(), j.Case)
	fmt.Fprint(b.w, "\r\x1b[K", text[:min(len(text), b.width-1)])
}

func (b *progress) finish(j load.Job) {
	b.done++
	b.left -= j.Takes()
	b.used += j.Takes()
}

// end clears the terminal's line for others.
func (b *progress) end() {
	if b.width > 0 {
		fmt.Fprint(b.w, "\r\x1b[K")
	}
}
