// Package shmdir keeps track of what this module's processes have in /dev/shm, so
// that the next process can remove what one leaves behind when it is killed, and nothing
// that is still in use is removed.
//
// Whether a process is alive cannot be told from its number: processes of several
// containers may share /dev/shm and not know each other's numbers. So each name
// is, or begins with, the name of a file that its owner keeps locked (flock(2)). The kernel
// drops the lock when the process ends, which every process can see.
package shmdir

import "regexp"

// Dir is the directory of all this. libfabric's shm provider keeps its memory there, too, so
// processes that share the directory can use that provider.
const Dir = "/dev/shm"

// PerCPU is how many bytes libfabric's shm provider wants free in Dir for each processor
// before it offers itself: the size of an endpoint's region, 16 MiB and a bit.
const PerCPU = 17 << 20

// PerEndpoint is how many bytes one endpoint takes there, with what it has besides its region.
const PerEndpoint = PerCPU

// Prefix is what all names of this module begin with.
const Prefix = "fabricnet-"

// guardName matches what NewName returns.
var guardName = regexp.MustCompile(`^` + Prefix + `[0-9a-f]{32}$`)
