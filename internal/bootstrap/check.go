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
// over TCP whether it is there at all. It is also how long, after the answer, the fabric may
// still bring nothing before it counts as broken: a busy or stopped process is no broken fabric.
const patience = 500 * time.Millisecond

// check has the binding check its path, for as long as the connection lasts: a listening side that
// has closed it, or died, will not answer. If more is set, there are other providers to try,
// and a silent fabric does not get all the time that is left.
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
	case <-w.answered: // the answer came as the check ended
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

// checkWatch watches the connection during a path check.
type checkWatch struct {
	hs       *handshake
	more     bool
	cancel   context.CancelCauseFunc
	answered chan struct{}
	silent   bool // the listening side has answered over TCP, but not over the fabric
	owed     bool // it has been asked, and has not answered yet
	torn     bool // only part of the question was sent
}

// read takes in what the listening side sends, which may only be answers or its farewell, until
// it is interrupted.
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

// ask finds out whether the listening side is there if the fabric is silent.
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

// pause waits for d, and returns false if ctx ends before that.
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

// settleAlive waits for the answer to a question if the fabric's was faster: no messages may
// follow Confirm on the connection.
func (hs *handshake) settleAlive() error {
	if !hs.asked {
		return nil
	}
	err := hs.awaitAlive()
	hs.asked = false
	return err
}

// awaitAlive waits for the listening side's answer. If a Reject comes instead, it returns its error.
func (hs *handshake) awaitAlive() error {
	kind, body, err := hs.expect(framing.KindAlive, framing.KindReject)
	if err == nil && kind == framing.KindReject {
		err = hs.rejected(body)
	}
	return err
}
