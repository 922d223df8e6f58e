// Package shmdir keeps track of what this module's processes have in /dev/shm, so
// that what one of them leaves behind when it is killed can be removed by the next,
// and nothing that is still in use is.
//
// Whether a process lives cannot be told from its number: processes of several
// containers may share /dev/shm and not know each other's numbers. So each name
// is, or begins with, that of a file that its owner holds locked (flock(2)). The kernel
// drops the lock with the process, whoever looks.
package shmdir

import "regexp"

// Dir is where libfabric's shm provider keeps its memory, too: processes that share
// it can use that.
const Dir = "/dev/shm"

// PerCPU is what libfabric's shm provider wants free in Dir for each processor before
// it offers itself, in bytes: the size of an endpoint's region, 16 MiB and a bit.
const PerCPU = 17 << 20

// PerEndpoint is what one endpoint takes there, with what is beside its region.
const PerEndpoint = PerCPU

// Prefix begins all names of this module.
const Prefix = "fabricnet-"

// guardName is what NewName returns.
var guardName = regexp.MustCompile(`^` + Prefix + `[0-9a-f]{32}$`)
