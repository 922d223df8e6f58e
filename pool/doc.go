// Package pool manages the memory that operations on a fabric touch. None of it
// is Go heap: slabs are mapped, faulted in and registered once, and then handed out
// as slots (for small frames) and landing rings (for the RDMA writes of one peer).
// Whatever is mapped counts against a Budget.
package pool

// Align is the alignment of slots and rings in bytes: two cache lines, which
// the adjacent-line prefetcher fetches together.
const Align = 128
