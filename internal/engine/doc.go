// Package engine turns a fabric endpoint into conns.
//
// The inner half is a state machine without goroutines, locks or clocks. A core is one
// endpoint with its memory and its operations in flight, a peer is one process at the other
// end, and a stream is one conn. Completions, calls and the time go in; operations on the
// fabric and wake-ups come out. So the model test can replay any schedule from a seed.
//
// Once the endpoint is open, the inner half maps no memory for the fabric either: it notes
// what it lacks, and the outer half supplies it (supply.go).
//
// The outer half makes that usable. Endpoint guards the core with one lock, package progress
// decides who polls the completion queue, and Conn blocks and honours deadlines.
//
// The way of a byte out: in Conn.Write, stream.trySmall (send.go) copies it into a send slot,
// or Conn.write copies it into a staging chunk that stream.prepareLarge took, or to the ring
// where both sides map it (mapped.go); peer.queue or stream.commitLarge makes an operation of it, and
// core.push posts that. Its way in: the Poller has the queue reaped, and core.dispatch hands a receive
// slot to core.received (receive.go) and completion data to core.landed (announce.go); stream.takeSmall and stream.takeLanded
// put the byte in line, and stream.tryRead copies it out.
//
// Where to find the rest:
//
//   - peer.go: how a peer comes, is doomed, and is reaped; check.go: its path check
//   - announce.go: how it learns that large data has landed
//   - states.go, closing.go, shut.go: the states of a stream, and how it ends
//   - leases.go, landing.go, rings.go, grow.go: the rings that peers write to, and how they are taken back
//   - quota.go: what each peer has of the endpoint, and when it is free again; quarantine.go: what dead peers may
//     still write to
//   - chores.go: what only the passage of time makes due
//   - heartbeat.go: whether the fabric still brings messages
//   - shutdown.go: the end of the endpoint
//
// Four budgets limit what a sender may have under way, and they are independent: the stream's
// receive window (small bytes), the landing ring (large bytes), the peer's receive slots
// (frames, and writes with completion data), and the local transmit queue. framing/SPEC.md
// has the rules.
package engine
