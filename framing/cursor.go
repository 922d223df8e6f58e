package framing

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
