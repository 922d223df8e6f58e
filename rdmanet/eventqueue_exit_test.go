package rdmanet

import (
	"context"
	"log/slog"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// exits is a Handler that ends the goroutine that calls it, as testing.T.FailNow does.
type exits struct {
	slog.Handler
	n atomic.Int32
}

func (*exits) Enabled(context.Context, slog.Level) bool { return true }

func (h *exits) Handle(context.Context, slog.Record) error {
	if h.n.Add(1) == 1 {
		runtime.Goexit()
	}
	return nil
}

// TestLoggerExits: a Handler that once ends its goroutine still gets the events that follow.
func TestLoggerExits(t *testing.T) {
	var e eventQueues
	h := &exits{Handler: slog.DiscardHandler}
	logger := slog.New(h)
	for range 3 {
		e.tell(t.Context(), logger, slog.LevelInfo, "event")
		time.Sleep(20 * time.Millisecond)
	}
	assert.EqualValues(t, 3, h.n.Load())
	start := time.Now()
	e.close()
	assert.Less(t, time.Since(start), eventsLinger/2, "close")
}
