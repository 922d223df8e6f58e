package framing

// Cursor is an absolute position or limit that a peer repeats in its frames.
// It counts bytes from the start of a stream and never goes back. The zero value
// is the start. A Cursor is not safe for concurrent use.
type Cursor uint64

// Advance takes a value from a frame and returns by how much it moves the
// cursor. That is 0 if an earlier frame has already reached the value, since
// frames may arrive in any order.
func (c *Cursor) Advance(to uint64) uint64 {
	if to <= uint64(*c) {
		return 0
	}
	n := to - uint64(*c)
	*c = Cursor(to)
	return n
}

// Room returns how many bytes lie between the cursor and limit, 0 if the cursor
// is past it.
func (c Cursor) Room(limit uint64) uint64 {
	if limit <= uint64(c) {
		return 0
	}
	return limit - uint64(c)
}

// SlotCursor counts receive slots modulo 2^32, as Header.Slots does. A
// SlotCursor is not safe for concurrent use.
type SlotCursor uint32

// Advance takes a count from a frame and returns how many slots it adds. That is
// 0 if an earlier frame has already reached the count.
func (c *SlotCursor) Advance(to uint32) uint32 {
	n := SlotsAfter(to, uint32(*c))
	if n <= 0 {
		return 0
	}
	*c = SlotCursor(to)
	return uint32(n)
}

// SlotsAfter returns by how many slots count a is ahead of count b, negative if it
// is behind. Two counts in use are always less than MaxSlots apart, which is far
// below the 2^31 at which the answer would be ambiguous.
func SlotsAfter(a, b uint32) int32 { return int32(a - b) }

// SeqAfter returns by how many writes sequence number a is ahead of b, negative if
// it is behind. Only their lower 15 bits count. At most MaxWrites writes of a lease
// are unread, which is far below the 2^14 at which the answer would be ambiguous.
func SeqAfter(a, b uint16) int16 { return int16((a-b)<<1) >> 1 }

// MaxWrites is how many RDMA writes of one lease a sender may have posted that
// its receiver has not read yet.
const MaxWrites = 64

// RingOffset returns where the ring position pos, counted from the start of the
// lease, lies in a ring of size bytes. size is not 0.
func RingOffset(pos, size uint64) uint64 { return pos % size }

// RingSpan returns how many of n bytes fit between the ring position pos, counted
// from the start of the lease, and the end of a ring of size bytes, which no write
// crosses. size is not 0.
func RingSpan(pos, size, n uint64) uint64 { return min(n, size-pos%size) }
