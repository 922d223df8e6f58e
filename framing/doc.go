// Package framing implements the wire protocol of fabricnet: the frames that
// travel over a fabric, the messages that two processes exchange over TCP before
// they use the fabric, and the arithmetic of the cursors in both. SPEC.md, beside
// this file, specifies the protocol.
//
// The package does no I/O and keeps no state. Encoders append to, or fill, a
// slice that the caller passes. Decoders copy what they return unless they say
// otherwise, never panic on any input, and allocate no more than a small
// multiple of the input's size. All integers are little endian.
package framing
