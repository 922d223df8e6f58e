package pool

// buddy allocates runs of blocks from a power of two of blocks. The length of a run
// is a power of two, and the run is aligned to it. buddy is a binary tree in an
// array, in which node i has the children 2i and 2i+1. The value of each node is the
// length of the longest free run below it.
type buddy []int32

func newBuddy(blocks int) buddy {
	b := make(buddy, 2*blocks)
	for i := 1; i < len(b); i++ {
		b[i] = b.span(i)
	}
	return b
}

// root is the node that covers all blocks.
const root = 1

// span is the number of blocks that node i covers.
func (b buddy) span(i int) int32 {
	s := int32(len(b) / 2)
	for ; i > root; i /= 2 {
		s /= 2
	}
	return s
}

// empty reports whether no block is in use.
func (b buddy) empty() bool { return int(b[root]) == len(b)/2 }

// alloc takes a free run of n blocks, n being a power of two, and returns its first block.
func (b buddy) alloc(n int) (block int, ok bool) {
	want := int32(n)
	if b[root] < want {
		return 0, false
	}
	i, span := root, len(b)/2
	for ; span > n; span /= 2 {
		left, right := b[2*i], b[2*i+1]
		i *= 2
		// Take the tighter fit, so that long runs are left alone.
		if left < want || (right >= want && right < left) {
			i++
		}
	}
	block = i*span - len(b)/2
	b[i] = 0
	b.update(i)
	return block, true
}

// free gives back the run of n blocks that alloc has taken.
func (b buddy) free(block, n int) {
	i := (block + len(b)/2) / n
	b[i] = int32(n)
	b.update(i)
}

// update brings node i's ancestors up to date.
func (b buddy) update(i int) {
	span := b.span(i)
	for i /= 2; i >= root; i /= 2 {
		left, right := b[2*i], b[2*i+1]
		if left == span && right == span {
			b[i] = 2 * span
		} else {
			b[i] = max(left, right)
		}
		span *= 2
	}
}
