// Package framing is the wire protocol of fabricnet: the frames that travel
// over a fabric, the messages that two processes exchange over TCP before they
// use one, and the arithmetic of the cursors in both. SPEC.md, beside this
// file, specifies it.
//
// The package does no I/O and keeps no state. Encoders append to, or fill, a
// slice of the caller's; decoders copy what they return unless they say
// otherwise, never panic on any input, and allocate no more than a small
// multiple of the input's size. All integers are little endian.
package framing
