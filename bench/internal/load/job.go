package load

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/seed202c38ff/fabricnet/bench/internal/workload"
)

// What a job may be.
const (
	// MaxSize bounds the size of an operation, which is held in memory several times over.
	MaxSize     = 32 << 20
	MaxConns    = 1024
	MaxInflight = 4096
	// maxMemory bounds what all operations of a row have in flight, in bytes, if a client on
	// another machine asks for it.
	maxMemory = 2 << 30
	// maxTime bounds for how long a client may have a server of another machine work.
	maxTime = 10 * time.Minute
)

// A Job is what both processes of one measurement are told.
type Job struct {
	workload.Case
	Host    string // where the server listens
	WarmUp  time.Duration
	Time    time.Duration
	Round   int    // from 1
	Profile string // the directory for profiles; no profiles if it is empty
	Last    bool   // the next job does not use the processes of this one
}

// limit returns how long j may take.
func (j Job) limit() time.Duration { return j.WarmUp + j.Time + slack }

// lead returns enough time for all busy peers to be told of a turn, and to be awake.
func (j Job) lead() time.Duration {
	return 100*time.Millisecond + time.Duration(j.Busy)*2*time.Millisecond
}

// Takes returns about how long j takes, including half a second to start and end the two processes.
// Peers serve several rows, each of which is charged a part of the time that it takes to start and
// end them and to mark the server's memory.
func (j Job) Takes() time.Duration {
	d := j.WarmUp + j.Time
	if j.Mode == workload.ModeFirst {
		return firstConns * (2*startTime + firstPause)
	}
	if j.Size == workload.BodySize { // a body takes its time, and each conn moves at least one when warming up and one when measured
		d += time.Duration(j.Conns) * bodyTime
	}
	switch {
	case j.Peers() == 0:
		return d + 500*time.Millisecond
	case j.Mode == workload.ModeIdle:
		return d + settleTime/2
	case j.Busy == 1 && j.Transport == workload.TransportRDMA:
		d += time.Duration(j.Idle) * startTime / 3
	}
	d += 2 * j.lead()
	if j.IsAmong() { // and the same for a peer alone
		d += j.WarmUp + j.Time + 2*j.lead()
	}
	return d
}

// NewJob says how c is measured if most cases are measured for d. Idle conns get more time than
// others, and so do hundreds of conns, each of which is to have its turn many times.
func NewJob(c workload.Case, host string, d time.Duration) Job {
	if c.Mode == workload.ModeIdle || c.Conns >= 100 || c.Busy >= 100 {
		d *= 5
	}
	j := Job{Case: c, Host: host, WarmUp: d / 4, Time: d}
	if c.Mode == workload.ModeFirst {
		j.WarmUp = 0
	}
	if c.Mode == workload.ModeIdle && c.Idle > 0 {
		j.WarmUp = settleTime
	}
	return j
}

// mostBytes returns how large an operation may be. A large body is never in memory as a whole.
func (j Job) mostBytes() int {
	if j.Mode == workload.ModeHTTP {
		return workload.BodySize
	}
	return MaxSize
}

// check refuses jobs that take more than the flags allow.
func (j Job) check() error {
	within := func(what string, n, limit int) error {
		if n < 1 || n > limit {
			return fmt.Errorf("%s: %d is not a number from 1 to %d", what, n, limit)
		}
		return nil
	}
	_, mode := workload.Works([]string{j.Mode}, []int{max(j.Size, 1)}, []int{1}, []int{1})
	err := errors.Join(mode, within("size", j.Size, j.mostBytes()), within("conns", j.Conns, MaxConns), within("in flight", j.Inflight, MaxInflight))
	switch {
	case err != nil:
		return err
	case !slices.Contains([]string{workload.TransportTCP, workload.TransportRDMA, workload.TransportFresh}, j.Transport):
		return fmt.Errorf("%s does not reach other machines", j.Transport)
	case j.Mode != workload.ModeHTTP && j.Size*j.Conns*j.Inflight > maxMemory:
		return fmt.Errorf("%d conns with %d times %d bytes in flight take more than %d bytes", j.Conns, j.Inflight, j.Size, maxMemory)
	case j.Time <= 0 || j.Time > maxTime || j.WarmUp < 0 || j.WarmUp > maxTime:
		return fmt.Errorf("time: %v is not up to %v", j.Time, maxTime)
	}
	return nil
}
