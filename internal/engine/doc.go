// Package engine turns a fabric endpoint into conns.
//
// Its inner half is a state machine without goroutines, locks or clocks: core
// is one endpoint with its memory and its operations in flight, peer is one
// process at the other end, stream is one conn. Completions, calls and the time
// go in, operations on the fabric and wake-ups come out, so that the model test
// replays any schedule from a seed.
//
// It maps no memory either: it notes what it lacks, and others bring it (supply.go).
//
// Its outer half makes that usable: Endpoint guards the core with one lock, package
// progress decides who polls the completion queue, Conn blocks, and honours deadlines.
//
// A byte's way out: Conn.Write, then stream.trySmall (send.go) copies it into a
// send slot, or stream.prepareLarge into a staging chunk; peer.queue or
// stream.commitLarge makes an operation of it, and core.push posts it. Its way
// in: the Poller has the queue reaped, core.dispatch hands a receive slot to core.received
// and a landed write to core.landed (receive.go, landing.go); stream.takeSmall
// and stream.takeLanded put it in line, and stream.tryRead copies it out.
//
// What a stream is at, and how it ends, is in states.go and closing.go; what the dead leave
// behind, and whether an endpoint takes further peers, in quarantine.go and room.go; what only
// time makes due in chores.go; whether the fabric still brings messages in heartbeat.go; the end of the endpoint in shutdown.go.
//
// Four budgets bound what a sender may have under way, and none is tied to
// another: the stream's receive window (small bytes), the landing ring (large
// bytes), the peer's receive slots (frames, and writes with completion data),
// and the local transmit queue. framing/SPEC.md has the rules.
package engine
