// Package rdmanet provides net.Conn and net.Listener over RDMA fabrics, through
// libfabric. It replaces package net where the bytes should cross a fabric, and leaves
// the servers and clients above it unchanged.
//
//	l, err := rdmanet.Listen("rdma", ":8080") // was net.Listen("tcp", ":8080")
//	...
//	err = http.Serve(l, handler)
//
// A client uses a [Dialer] wherever a DialContext function fits. Packages httpdialer and
// grpcdialer, beside this one, do that for net/http and gRPC:
//
//	client := &http.Client{Transport: httpdialer.Transport(new(rdmanet.Dialer))}
//
// # Requirements
//
// Linux with glibc, cgo, libfabric's headers to build, and libfabric 1.17 or later to run.
// Elsewhere everything compiles, and Dial and Listen return [ErrUnsupported].
//
// # How it works
//
// An address is a TCP address. The first Dial between two processes connects to the
// listener over TCP and agrees with it on a libfabric provider. That TCP connection, the
// control connection, stays open as a sign of life; no payload crosses it. All further
// conns between the two processes are opened over the fabric, in one round trip, and have
// the same addresses: [ConnInfo] tells them apart. Small writes travel as messages. Large
// writes travel by RDMA write into memory that the receiver leases to the conn or, between
// processes of one host, by a copy into it.
//
// Providers are negotiated: shared memory on one host, then RDMA hardware. Others,
// including the software providers, are used only if both sides name them, in the Providers
// fields or in the environment variable RDMANET_PROVIDERS (names separated by commas).
// Plain TCP is used only if [Dialer.Fallback] or [ListenConfig.AcceptTCP] says so. Before a
// conn exists, its provider has moved data in both directions, and the receivers have
// compared it; a provider that fails this check is passed over for the next one.
//
// # Configuration
//
// The zero values of [Dialer], [ListenConfig] and [Transport] are valid, and zero fields
// stand for the defaults. Invalid values are never corrected: Dial and Listen fail with
// [ErrConfig] and name the field. RDMANET_PROVIDERS, RDMANET_MEMORY_LIMIT,
// RDMANET_POLL_TIME and RDMANET_MAPPED_RINGS in the environment take the place of fields
// that are not set.
//
// # Differences from TCP
//
// A Dial succeeds once the listener's backlog has taken the conn; if the backlog is full,
// it fails at once with ECONNREFUSED. Close waits until the peer has everything in its
// memory, so that the process may exit right after it; it waits for at most the linger time
// (5 seconds unless [Conn.SetLinger] says otherwise). Addresses are of type *Addr, not
// *net.TCPAddr, except on conns that use plain TCP. There is no syscall.Conn. Writing to a
// conn that the peer has closed fails with EPIPE at once, where TCP lets the first Write
// pass.
//
// # Errors
//
// The errors of dials, listeners and conns are *net.OpError, except io.EOF, which is
// bare. errors.Is finds os.ErrDeadlineExceeded, net.ErrClosed, context errors,
// syscall.ECONNREFUSED, ECONNRESET and EPIPE, and the variables of this package.
// [Conn.ReadFrom] and [Conn.WriteTo] return the errors of their argument unchanged.
//
// # Concurrency and resources
//
// All methods of all types may be called concurrently, except that a [Buffer] belongs to
// one goroutine at a time. Resources that dialers and listeners share, such as endpoints
// and registered memory, belong to a [Transport], whose MemoryLimit bounds that memory.
//
// # Security
//
// The control connection can be protected by TLS, with certificates on both sides; then
// only peers that passed it can open conns over a fabric. The bytes on the fabric are clear
// text all the same, and whoever can read them can forge them. A shared-memory provider
// trusts every process of the same user. Where that matters, run TLS above the conn, with
// tls.Client and tls.NewListener.
package rdmanet
