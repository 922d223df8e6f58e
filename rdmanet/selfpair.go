package rdmanet

import (
	"bytes"
	"errors"
	"sync"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
)

// A process may dial itself. If two endpoints of one process use one mapping of their memory
// (fabric.Attr.OneMapping), the mapping goes away with the first of them, while the second may
// still use it. So both are closed when neither is used any more.
var selfPairs = struct {
	sync.Mutex
	byName map[string]*selfPair
}{byName: make(map[string]*selfPair)}

// selfPair is an endpoint whose only peer may be in this process.
type selfPair struct {
	fabric.Endpoint
	other  *selfPair // guarded by selfPairs, as is closed
	closed bool
}

func newSelfPair(ep fabric.Endpoint) *selfPair {
	e := &selfPair{Endpoint: ep}
	selfPairs.Lock()
	defer selfPairs.Unlock()
	selfPairs.byName[string(ep.Name())] = e
	return e
}

// Insert finds the other endpoint, if it is in this process. The library finds that, too, by
// its name, but even if it is closed or being closed, and then reads what is no longer mapped.
func (e *selfPair) Insert(name []byte) (fabric.Addr, error) {
	selfPairs.Lock()
	defer selfPairs.Unlock()
	other := selfPairs.byName[string(name)]
	if other == nil && e.mapped() && bytes.Equal(family(name), family(e.Name())) {
		return 0, errors.New("the peer's endpoint, in this process, is closed")
	}
	if other != nil && other != e && other.other == nil && e.other == nil {
		e.other, other.other = other, e
	}
	return e.Endpoint.Insert(name)
}

// Rescue implements fabric.Rescuer if the endpoint does.
func (e *selfPair) Rescue() bool {
	r, ok := e.Endpoint.(fabric.Rescuer)
	return ok && r.Rescue()
}

func (e *selfPair) mapped() bool { return e.Attr().OneMapping }

// family returns what the names of all endpoints of a process begin with: all up to the "-" in
// fi_shm://guard.pid-endpoint:uid:number.
func family(name []byte) []byte { return name[:bytes.LastIndexByte(name, '-')+1] }

// Shutdown does nothing if it would pull the mapping away from under the other endpoint.
// Without it, posted memory is just as safe: nobody makes this endpoint progress any more. On a
// fabric without such a mapping, calls on the other endpoint may do that.
func (e *selfPair) Shutdown() error {
	selfPairs.Lock()
	keep := e.mapped() && e.other != nil
	if !keep {
		e.leaveLocked()
	}
	selfPairs.Unlock()
	if keep {
		return nil
	}
	return e.Endpoint.Shutdown()
}

// leaveLocked keeps others from becoming the peer of this endpoint.
func (e *selfPair) leaveLocked() {
	if name := string(e.Name()); selfPairs.byName[name] == e {
		delete(selfPairs.byName, name)
	}
}

// Close leaves the work to the other endpoint's Close, if that is still to come. What takes time
// is done without the lock, for which all other endpoints wait.
func (e *selfPair) Close() error {
	selfPairs.Lock()
	e.leaveLocked()
	e.closed = true
	other := e.other
	wait := other != nil && !other.closed
	selfPairs.Unlock()
	if wait {
		return nil
	}
	err := e.Endpoint.Close()
	if other != nil {
		err = errors.Join(err, other.Endpoint.Close())
	}
	return err
}
