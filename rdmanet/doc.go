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
// Elsewhere, and in a static program, everything compiles, and Dial and Listen return [ErrUnsupported].
//
// # How it works
//
// An address is a TCP address. The first Dial between two processes connects to the
// listener over TCP and agrees with it on a libfabric provider. That TCP connection, the
// control connection, stays open as a sign of life; no payload crosses it. All further
// conns between the two processes are opened over the fabric, in one round trip. A first Dial
// to a further listener of the same process goes through TLS and Authorize there, and then
// shares the control connection, too. Small writes travel as messages. Large
// writes travel by RDMA write into memory that the receiver leases to the conn or, between
// processes of one host, by a copy into it.
//
// Providers are negotiated: shared memory on one host, then RDMA hardware. Others,
// including the software providers, are used only if both sides name them, in the Providers
// fields or in the environment variable RDMANET_PROVIDERS (names separated by commas).
// Plain TCP is used only if [Dialer.Fallback] or [ListenConfig.AcceptTCP] says so; such conns
// are of type *net.TCPConn, and the program's alone. Before a
// conn exists, its provider has moved data in both directions, and the receivers have
// compared it; a provider that fails this check is passed over for the next one.
//
// A goroutine that is locked to a thread may be in another network namespace than the rest of
// the process. Dial and Listen work in the namespace of the thread that calls them, as in
// package net, and Dial resolves names there. In such a namespace only shared memory can be
// used: other providers make sockets on threads of the process's, and are refused with
// [ErrProviderUnavailable]. The process's namespace is that of the threads to which no
// goroutine is locked, when the Transport is first used.
//
// # Configuration
//
// The zero values of [Dialer], [ListenConfig] and [Transport] are valid, and zero fields
// stand for the defaults. Invalid values are never corrected: Dial and Listen fail with
// [ErrConfig] and name the field. RDMANET_PROVIDERS, RDMANET_ENDPOINT_PREFIXES,
// RDMANET_MEMORY_LIMIT and RDMANET_POLL_TIME in the environment take the
// place of fields that are not set. A program with more rights than its user (setuid, file
// capabilities) removes these variables, and libfabric's, before main begins.
//
// # Addresses
//
// Addresses are of type *net.TCPAddr. A listener's is the one that it can be dialed at. A conn's
// are those of its control connection, but for the dialing side's port: the Transport of the
// listener gives each conn one of its own among those over a fabric from that IP address. A plain
// TCP client of AcceptTCP may happen to have the same. [InfoOf] finds a conn by its address.
//
// # Differences from TCP
//
// A Dial succeeds once the listener's backlog has taken the conn: not if the listener's process is
// stopped, and if the backlog is full, it fails at once with ECONNREFUSED. A peer that is stopped
// for longer than [Transport].DeadAfter is lost: its conns are reset.
//
// Close and CloseWrite wait until this process is not needed any more for what was written, so that
// it may exit right after: over shared memory until all of that is posted, elsewhere until the peer
// has it. They wait no longer than 0.1 seconds for a peer that gives no sign of life, and 0.01 for one
// that has all data: it may then read ECONNRESET instead of io.EOF at the end, if this process exits.
// When a process ends without them, its peers read what has come, and then ECONNRESET; elsewhere
// than over shared memory the last of it may be lost. Close of a conn with unread data does not
// reset it. After a reset, each Write fails with ECONNRESET.
//
// There is no syscall.Conn. In a bubble of testing/synctest, where time stands still while a conn
// waits for its peer, Dial, Listen and the SetDeadlines fail with [ErrUnsupported], and conns from
// outside should not be used. The first Dial or Listen of a process loads libfabric, which takes it
// 0.1 to 0.3 seconds.
//
// # Errors
//
// The errors of dials, listeners and conns are *net.OpError, around *os.SyscallError where package
// net has one, except io.EOF, which is bare. Why a peer was lost is in [ConnInfo]. errors.Is finds
// os.ErrDeadlineExceeded, net.ErrClosed, context errors, syscall.ECONNREFUSED, ECONNRESET and
// EPIPE, and the variables of this package.
// [Conn.ReadFrom] and [Conn.WriteTo] return the errors of their argument unchanged.
//
// # Concurrency and resources
//
// All methods of all types may be called concurrently, except that a [Buffer] belongs to
// one goroutine at a time. Resources that dialers and listeners share, such as endpoints
// and registered memory, belong to a [Transport], whose MemoryLimit bounds that memory.
//
// What nobody has read waits at the receiver: up to 2 MiB of a conn's small data, in writes of
// up to 8 KiB (4 KiB over shared memory), and as much large data as its landing rings take, about
// 1 or 2 MiB (256 KiB while half of MemoryLimit is in use). Then the writer waits. For small data a
// new conn has 64 KiB. It gets more when that is full, and less the more conns its peer has: a
// peer's windows grow to an eighth of MemoryLimit in all, so that each of 512 conns has its 64 KiB.
// See Transport.ReceiveWindow.
//
// # Security
//
// The control connection can be protected by TLS, with certificates on both sides; then
// only peers that passed it can open conns over a fabric. The bytes on the fabric are clear
// text all the same, and whoever can read them can forge them. A shared-memory provider
// trusts every process of the same user. Where that matters, run TLS above the conn, with
// tls.Client and tls.NewListener.
package rdmanet
