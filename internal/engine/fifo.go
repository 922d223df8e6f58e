package engine

// fifo is a queue. Its zero value is empty. However long the queue is, push and pop take
// constant time on average, and so does unpop where pops have left room in front.
type fifo[T any] struct {
	items []T
	head  int
}

func (q *fifo[T]) len() int { return len(q.items) - q.head }

func (q *fifo[T]) push(x T) { q.items = append(q.items, x) }

// first returns the item that is next. There must be one.
func (q *fifo[T]) first() *T { return &q.items[q.head] }

// last returns the item that was pushed last. There must be one.
func (q *fifo[T]) last() *T { return &q.items[len(q.items)-1] }

// pop takes out the item that is next. There must be one.
func (q *fifo[T]) pop() T {
	var none T
	x := q.items[q.head]
	q.items[q.head] = none
	switch q.head++; {
	case q.head == len(q.items):
		q.items, q.head = q.items[:0], 0
	case q.head > 64 && q.head > len(q.items)/2:
		n := copy(q.items, q.items[q.head:])
		clear(q.items[n:])
		q.items, q.head = q.items[:n], 0
	}
	return x
}

// unpop puts x in front, so that it is next.
func (q *fifo[T]) unpop(x T) {
	if q.head > 0 {
		q.head--
		q.items[q.head] = x
		return
	}
	q.items = append(q.items, x)
	copy(q.items[1:], q.items)
	q.items[0] = x
}
