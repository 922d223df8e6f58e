package rdmanet

import "sync"

// tally counts what goes on and waits for its end, as a sync.WaitGroup does. Unlike that, it does
// not end the program if it is used inside and outside bubbles of testing/synctest: see bubble.go.
type tally struct {
	mu   sync.Mutex // guards n
	n    int
	busy sync.Mutex // locked while n is not 0
}

func (t *tally) add() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n++; t.n == 1 {
		t.busy.Lock() // wait holds it for a moment only
	}
}

func (t *tally) done() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n--; t.n == 0 {
		t.busy.Unlock()
	}
}

// start calls f in a goroutine that counts.
func (t *tally) start(f func()) {
	t.add()
	go func() {
		defer t.done()
		f()
	}()
}

// wait waits until nothing goes on.
func (t *tally) wait() {
	t.busy.Lock()
	t.busy.Unlock() //nolint:staticcheck // nothing has to be done meanwhile
}
