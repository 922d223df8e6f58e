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
	if lost == nil {
		lost = w.torn
	}
	switch {
	case w.silent && errors.Is(lost, ErrHandshakeTimeout): // the listening side has waited for the fabric, too
		hs.lost = true
		return fmt.Errorf("%w: %w", ErrSilent, lost)
	case lost != nil:
		hs.lost = true
		return fmt.Errorf("waiting for the fabric's answer: %w", lost)
	case errors.Is(err, ErrSilent), errors.Is(err, engine.ErrContents), errors.Is(err, engine.ErrUnmapped):
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
	silent   bool  // the listening side has answered over TCP, but not over the fabric
	owed     bool  // it has been asked, and has not answered yet
	torn     error // only part of the question was sent
}

// read takes in what the listening side sends, which may only be answers or its farewell, until
// it is interrupted: then the error is nil.
func (w *checkWatch) read() error {
	for {
		kind, body, err := w.hs.expect(framing.KindAlive, framing.KindReject)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil
		case err != nil:
			return err
		case kind == framing.KindReject:
			return w.hs.rejected(body)
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
		if n > 0 {
			w.torn = err
		}
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
	hs.asked = false
	kind, body, err := hs.expect(framing.KindAlive, framing.KindReject)
	if err == nil && kind == framing.KindReject {
		err = hs.rejected(body)
	}
	return err
}
