// Package rdmanet provides net.Conn and net.Listener over RDMA fabrics, through
// libfabric: it takes the place of package net where the bytes should cross a
// fabric, and leaves the servers and clients above unchanged.
//
//	l, err := rdmanet.Listen("rdma", ":8080") // was net.Listen("tcp", ":8080")
//	...
//	err = http.Serve(l, handler)
//
// A client takes a [Dialer] wherever a DialContext function fits:
//
//	d := new(rdmanet.Dialer)
//	client := &http.Client{Transport: &http.Transport{DialContext: d.DialContext}}
//
// # How it works
//
// An address is a TCP address. The first Dial between two processes meets the
// listener there, agrees with it on a libfabric provider, and keeps the TCP
// connection as a sign of life; no payload crosses it. All further conns between
// the two are opened over the fabric, in one round trip, and share addresses:
// [ConnInfo] tells them apart. Small writes travel as messages, large ones by
// RDMA write into memory that the receiver leases to the conn, or, between processes
// of one host, by a copy into it.
//
// Providers are negotiated: shared memory on one host, then RDMA hardware. Others,
// software ones among them, are used only if the Providers fields, or the environment
// variable RDMANET_PROVIDERS (names separated by commas), name them on both sides.
// Plain TCP is used only if [Dialer.Fallback] or [ListenConfig.AcceptTCP] says so.
// Before there is a conn its provider has moved data both ways, which was compared;
// one that fails is passed over for the next.
//
// # Configuration
//
// The zero value of [Dialer], [ListenConfig] and [Transport] is valid, and zero fields
// take the defaults. Values that make no sense are never corrected: Dial and Listen
// fail with [ErrConfig] and name the field. RDMANET_PROVIDERS, RDMANET_MEMORY_LIMIT,
// RDMANET_POLL_TIME and RDMANET_MAPPED_RINGS in the environment take the place of fields
// that are not set.
//
// # Differences from TCP
//
// A Dial succeeds once the listener's backlog has taken the conn; with a full
// backlog it fails at once with ECONNREFUSED. Close waits, for the linger time
// at most (5 seconds unless [Conn.SetLinger] says otherwise), until the peer has
// everything in its memory, so that the process may exit right after. Addresses
// are of type *Addr, not *net.TCPAddr, but for conns that use plain TCP. There is no
// syscall.Conn. Writing to a conn that the peer has closed fails with EPIPE at
// once, where TCP lets the first Write pass.
//
// # Errors
//
// All errors are *net.OpError, but io.EOF, which is bare. errors.Is finds
// os.ErrDeadlineExceeded, net.ErrClosed, context errors, syscall.ECONNREFUSED,
// ECONNRESET and EPIPE, and the variables of this package.
//
// # Concurrency and resources
//
// All methods of all types may be called concurrently, but a [Buffer] belongs to
// one goroutine at a time. What dialers and listeners share, such as endpoints
// and registered memory, belongs to a [Transport], whose MemoryLimit bounds it.
//
// # Security
//
// The control connection can be protected by TLS, with certificates on both sides; then
// only those who passed it can open conns over a fabric. Bytes there are clear text
// all the same, which whoever reads them can forge, and a shared-memory provider trusts every process
// of the same user: run TLS above the conn, with tls.Client and tls.NewListener,
// where that matters.
package rdmanet
