package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/engine"
)

// patience is how long the fabric may bring nothing before the listening side is asked
// over TCP whether it is there at all, and then again until the fabric is taken for the
// one that fails: a busy or stopped process is no broken fabric.
const patience = 500 * time.Millisecond

// check has the binding check its path, unless the connection ends: a listening side that
// has closed it, or died, will not answer. With more, there are other providers to try,
// and a fabric that is silent does not get all the time there is.
func (hs *handshake) check(ctx context.Context, b Binding, more bool) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	w := &checkWatch{hs: hs, more: more, cancel: cancel, answered: make(chan struct{}, 1)}
	var wg sync.WaitGroup
	var lost error
	wg.Go(func() {
		lost = w.read()
		cancel(nil)
	})
	wg.Go(func() { w.ask(ctx) })
	err := b.Check(ctx)
	cancel(nil)
	hs.interrupt()
	wg.Wait()
	hs.resume()
	select {
	case <-w.answered: // at the same time
		w.owed = false
	default:
	}
	hs.asked = w.owed
	switch {
	case !errors.Is(lost, os.ErrDeadlineExceeded) || w.torn:
		hs.lost = true
		return fmt.Errorf("waiting for the fabric's answer: %w", lost)
	case errors.Is(err, ErrSilent), errors.Is(err, engine.ErrContents):
		return err
	case err != nil && w.silent:
		return fmt.Errorf("%w: %w", ErrSilent, err)
	case err != nil:
		return fmt.Errorf("the fabric does not answer: %w", err)
	}
	return hs.settleAlive()
}

// checkWatch looks after the connection during a path check.
type checkWatch struct {
	hs       *handshake
	more     bool
	cancel   context.CancelCauseFunc
	answered chan struct{}
	silent   bool // the listening side has answered here, and not over the fabric
	owed     bool // it has been asked, and has not answered yet
	torn     bool // the question was sent in part
}

// read takes in what the listening side sends, which is answers only, until it is
// interrupted.
func (w *checkWatch) read() error {
	for {
		if err := w.hs.awaitAlive(); err != nil {
			return err
		}
		select {
		case w.answered <- struct{}{}:
		default:
			return malformed(errors.New("the listener says more than it was asked"))
		}
	}
}

// ask finds out whether the listening side is there, while the fabric is silent.
func (w *checkWatch) ask(ctx context.Context) {
	if !pause(ctx, patience) {
		return
	}
	question, err := framing.AppendMessage(nil, framing.KindAlive, nil)
	if err != nil {
		return
	}
	if n, err := w.hs.nc.Write(question); err != nil {
		w.torn = n > 0
		return
	}
	w.owed = true
	select {
	case <-ctx.Done():
		return
	case <-w.answered:
		w.owed = false
	}
	if !pause(ctx, patience) {
		return
	}
	w.silent = true
	if w.more {
		w.cancel(ErrSilent)
	}
}

// pause waits, and reports false if ctx ends before.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// settleAlive waits for the answer to a question that the fabric was faster than: what
// follows Confirm on the connection are no messages.
func (hs *handshake) settleAlive() error {
	if !hs.asked {
		return nil
	}
	err := hs.awaitAlive()
	hs.asked = false
	return err
}

// awaitAlive waits for the listening side's answer, or its farewell.
func (hs *handshake) awaitAlive() error {
	kind, body, err := hs.expect(framing.KindAlive, framing.KindReject)
	if err == nil && kind == framing.KindReject {
		err = hs.rejected(body)
	}
	return err
}
