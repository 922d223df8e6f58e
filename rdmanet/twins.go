package rdmanet

import (
	"errors"
	"sync"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
)

// A process may dial itself. Two endpoints of one process that share memory, as
// those of the shm provider do, use one mapping of it, which goes away with the
// first of them, under the hands of the second. So both are closed when both are
// no longer used.
var twins = struct {
	sync.Mutex
	byName map[string]*twin
}{byName: make(map[string]*twin)}

// twin is an endpoint whose only peer may be in this process.
type twin struct {
	fabric.Endpoint
	other  *twin // guarded by twins, as is closed
	closed bool
}

func newTwin(ep fabric.Endpoint) *twin {
	e := &twin{Endpoint: ep}
	twins.Lock()
	defer twins.Unlock()
	twins.byName[string(ep.Name())] = e
	return e
}

// Insert finds the other one, if it is here.
func (e *twin) Insert(name []byte) (fabric.Addr, error) {
	twins.Lock()
	if other := twins.byName[string(name)]; other != nil && other != e && other.other == nil && e.other == nil {
		e.other, other.other = other, e
	}
	twins.Unlock()
	return e.Endpoint.Insert(name)
}

// Rescue implements fabric.Rescuer if the endpoint does.
func (e *twin) Rescue() bool {
	r, ok := e.Endpoint.(fabric.Rescuer)
	return ok && r.Rescue()
}

// Shutdown would pull a mapping, which has a name, from under the other one.
// Without it, posted memory is as safe: nobody makes this endpoint progress any
// more. On a fabric without a mapping the other one's calls may do that.
func (e *twin) Shutdown() error {
	_, mapped := e.Endpoint.(interface{ Unlink() error })
	twins.Lock()
	paired := e.other != nil
	twins.Unlock()
	if mapped && paired {
		return nil
	}
	return e.Endpoint.Shutdown()
}

// Close leaves it to the other one's Close if that is still to come.
func (e *twin) Close() error {
	twins.Lock()
	e.closed = true
	delete(twins.byName, string(e.Name()))
	other := e.other
	wait := other != nil && !other.closed
	twins.Unlock()
	if wait {
		return nil
	}
	err := e.Endpoint.Close()
	if other != nil {
		err = errors.Join(err, other.Endpoint.Close())
	}
	return err
}
