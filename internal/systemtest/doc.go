// Package systemtest tests rdmanet as programs use it: by its public interface, over libfabric, and mostly
// across processes. Hostile peers speak the protocol themselves. Tests that look inside, or simulate a fabric, are those of rdmanet itself.
//
// The suites, by the beginnings of their files' names:
//
//   - hosts: two hosts, in network namespaces (make test-hosts)
//   - containers: containers on one host (make test-hosts)
//   - hostile: a peer that has been through the handshake and sends whatever it likes
//   - attacks, eavesdrop: a stranger at the port that a software provider opens
//   - crowd: connections that never complete the handshake
//   - kill, crashes, mapped: peers that are killed
//   - exit: processes that end without closing anything
//   - frozen, stalled: processes that are stopped
//   - deadlock, stuck, largebuffer: both sides write, and readers that never read
//   - scale, idle, flat, resident: many processes, what waiting costs, and memory
//   - leftover, children: what an ended process leaves in /dev/shm, and what a child process inherits
//   - http: a file served with net/http, and TLS above a conn
//   - settings, mixed, nolibrary: processes whose libfabric is set up otherwise, another one or not there
//
// What they share with rdmanet's own tests is in package rdmatest.
package systemtest
