package rdmanet

import "time"

// In a bubble of testing/synctest time stands still while a goroutine waits for something outside,
// and what is made there belongs to it. A Transport waits for other processes all the time, has
// timers, and is shared; so nothing of one may be made in a bubble.

// bubbleError is an ErrUnsupported.
type bubbleError struct{}

func (bubbleError) Error() string {
	return "not in a bubble of testing/synctest, where time stands still while a conn waits for its peer: use net.Pipe there"
}

func (bubbleError) Unwrap() error { return ErrUnsupported }

// untimed is unbubbled for a call that sets a deadline, where t is not zero.
func untimed(t time.Time) error {
	if t.IsZero() {
		return nil
	}
	return unbubbled()
}

// unbubbled fails in a bubble of testing/synctest.
func unbubbled() error {
	if bubbled() {
		return bubbleError{}
	}
	return nil
}
