package progress

import (
	"errors"
	"go/build"
	"os"
	"path"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestImportsNothingAbove: of this module, the package imports nothing but fabric. Nothing leads
// back up into the engine.
func TestImportsNothingAbove(t *testing.T) {
	pkg, err := build.ImportDir(".", 0)
	require.NoError(t, err)
	const module = "github.com/seed202c38ff/fabricnet/"
	var ours []string
	for _, name := range pkg.Imports {
		if strings.HasPrefix(name, module) {
			ours = append(ours, path.Base(name))
		}
	}
	assert.Equal(t, []string{"fabric", "metrics"}, ours)
}

type moveOf struct{ from, to string }

// documented returns the moves that the table in doc.go lists.
func documented(t *testing.T) map[moveOf]bool {
	text, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	moves := make(map[moveOf]bool)
	for _, m := range regexp.MustCompile(`(?m)^//\t(\w+) +-> (\w+) `).FindAllStringSubmatch(string(text), -1) {
		moves[moveOf{m[1], m[2]}] = true
	}
	require.NotEmpty(t, moves)
	return moves
}

// recorder has the moves that were seen.
type recorder struct {
	mu    sync.Mutex
	moves map[moveOf]bool
}

func (r *recorder) moved(from, to state) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.moves[moveOf{from.String(), to.String()}] = true
}

// TestMoves: the queue's states move as the table in doc.go says, and in no other way. Each row is
// seen, with several goroutines that wait, and with whatever there is to wait on.
func TestMoves(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(max(2, runtime.GOMAXPROCS(0))))
	r := &recorder{moves: make(map[moveOf]bool)}
	for name, prepare := range map[string]func(*Config) *Doorbell{
		"wait fd":   func(c *Config) *Doorbell { c.Waiter = newFD(); return nil },
		"doorbell":  func(*Config) *Doorbell { return newDoorbell() },
		"asleep":    func(c *Config) *Doorbell { c.Spin = -1; return newDoorbell() },
		"nothing":   func(*Config) *Doorbell { return nil },
		"broken fd": func(c *Config) *Doorbell { f := newFD(); f.broken = errors.New("broken"); c.Waiter = f; return nil },
	} {
		t.Run(name, func(t *testing.T) { makeMoves(t, prepare, r.moved) })
	}
	assert.Equal(t, documented(t), r.moves)
}

func makeMoves(t *testing.T, prepare func(*Config) *Doorbell, moved func(from, to state)) {
	const waiters, rounds = 3, 200
	var ws [waiters]Waiter
	q := &fakeQueue{reaped: func() {
		for i := range ws {
			ws[i].Signal()
		}
	}}
	cfg := Config{Queue: q, Spin: 50 * time.Microsecond}
	doorbell := prepare(&cfg)
	p := New(cfg)
	p.moves = moved
	if doorbell != nil {
		p.SetDoorbell(doorbell)
	}
	p.Start()
	p.Join()
	p.Joined()
	arrive := func() {
		q.arrived.Add(1)
		if fd, ok := cfg.Waiter.(*fakeFD); ok {
			fd.arrived()
		} else if doorbell != nil {
			doorbell.arrived()
		}
	}
	var wg sync.WaitGroup
	for i := range ws {
		ws[i] = NewWaiter()
		wg.Go(func() {
			for range rounds {
				ws[i].Prepare()
				p.Wait(&ws[i], "test")
				p.Settle(i == 0)
			}
		})
	}
	ended := make(chan struct{})
	go func() { wg.Wait(); close(ended) }()
	for i := 0; ; i++ {
		select {
		case <-ended:
			p.Drain(time.Millisecond)
			p.Close()
			return
		case <-time.After(time.Duration(i%5) * 100 * time.Microsecond):
			arrive()
		}
	}
}
