//go:build linux && cgo

// Package side is what the examples that use libfabric alone have in common: an endpoint, memory
// for it, and polling with a time limit.
package side

import (
	"errors"
	"fmt"
	"net"
	"runtime"
	"syscall"
	"time"

	"github.com/seed202c38ff/fabricnet/cgo/ofi"
)

// Patience is how long a Side waits for anything.
const Patience = 10 * time.Second

// Side is one side's endpoint and what belongs to it. Only one goroutine may use it.
type Side struct {
	*ofi.Endpoint
	batch   *ofi.Batch
	regions []*ofi.Region
	memory  [][]byte
	done    []ofi.Completion // that nobody has waited for yet
}

// Open opens an endpoint of a provider at the local address of oob, a TCP connection.
func Open(hints ofi.Hints, oob net.Conn) (*Side, error) {
	if hints.Provider != "shm" { // shm has names in /dev/shm instead of addresses
		hints.Source = oob.LocalAddr().(*net.TCPAddr).IP.String()
	}
	// libfabric reads its environment at the first call. Its cache of registered memory does not
	// see what Go's runtime unmaps, so it is disabled. The other setting says that processes are
	// few, so that ofi_rxm makes queues that fit into a small device. What is set already stays as
	// it is.
	ofi.Setenv("FI_MR_CACHE_MONITOR", "disabled")
	ofi.Setenv("FI_UNIVERSE_SIZE", "16")
	// fi_getinfo(3) lists what fits the hints, best first. The binding always asks for
	// reliable datagrams, FI_EP_RDM of fi_endpoint(3): whole messages, each to any
	// peer, without a connection to set up.
	list, err := ofi.GetInfo(hints)
	if err != nil {
		return nil, fmt.Errorf("provider %s: %w", hints.Provider, err)
	}
	defer list.Free()
	for info := range list.All() {
		// An endpoint belongs to a domain, which stands for a device, and has two
		// tables of its own: the address vector with its peers, and the completion
		// queue that tells what became of operations. This opens them all: fi_fabric(3),
		// fi_domain(3), fi_av(3), fi_cq(3), fi_endpoint(3).
		ep, err := ofi.Open(info, ofi.Options{})
		if err != nil {
			return nil, err
		}
		batch, err := ofi.NewBatch()
		if err != nil {
			return nil, errors.Join(err, ep.Close())
		}
		return &Side{Endpoint: ep, batch: batch}, nil
	}
	return nil, fmt.Errorf("provider %s: nothing found", hints.Provider)
}

// Memory returns registered memory for an endpoint, size bytes of zeroes.
func (s *Side) Memory(size int, access ofi.Access) ([]byte, *ofi.Region, error) {
	// The fabric uses a buffer until its operation completes, long after the call that names it.
	// Go's own memory will not do: the garbage collector may free what only C knows of. So this is
	// mapped separately.
	mem, err := syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		return nil, nil, err
	}
	s.memory = append(s.memory, mem)
	// A device that reads and writes memory by itself has to know its pages, which must stay where
	// they are: registration, fi_mr(3). For the buffers of a side's own operations, providers that
	// say FI_MR_LOCAL demand it, and the others do not mind. Memory that peers write to has to be
	// registered with all of them.
	region, err := s.Register(mem, access)
	if err != nil {
		return nil, nil, err
	}
	s.regions = append(s.regions, region)
	return mem, region, nil
}

// Close takes down the endpoint first, so that nothing is written into memory that is about to go
// away, and then the rest in the order that libfabric wants.
func (s *Side) Close() error {
	err := s.Shutdown()
	for _, r := range s.regions {
		err = errors.Join(err, r.Close())
	}
	s.batch.Free()
	err = errors.Join(err, s.Endpoint.Close())
	for _, mem := range s.memory {
		err = errors.Join(err, syscall.Munmap(mem))
	}
	return err
}

// Post posts an operation. Providers refuse it with FI_EAGAIN while their queue is full, and while
// they set up their own connection to a peer. Post then polls and tries again.
func (s *Side) Post(op ofi.Op) error {
	for start := time.Now(); time.Since(start) < Patience; runtime.Gosched() {
		if posted, err := s.exchange(&op); posted || err != nil {
			return err
		}
	}
	return errors.New("the provider takes no operation")
}

// Wait polls until an operation of a kind is complete.
func (s *Side) Wait(kind ofi.Kind) (ofi.Completion, error) {
	for start := time.Now(); time.Since(start) < Patience; runtime.Gosched() {
		for i, c := range s.done {
			if c.Kind == kind || c.Err != nil {
				s.done = append(s.done[:i], s.done[i+1:]...)
				return c, c.Err
			}
		}
		if _, err := s.exchange(nil); err != nil {
			return ofi.Completion{}, err
		}
	}
	return ofi.Completion{}, errors.New("the operation does not complete")
}

// Until runs f, and polls until it has returned.
func (s *Side) Until(f func() error) error {
	result := make(chan error, 1)
	go func() { result <- f() }()
	for {
		select {
		case err := <-result:
			return err
		default:
		}
		if _, err := s.exchange(nil); err != nil {
			return err
		}
		runtime.Gosched()
	}
}

// exchange posts an operation, if there is one, and reads completions (fi_cq_read of fi_cq(3)).
// Most providers do their work only within such calls (manual progress in fi_domain(3)), so both
// sides must poll for either to get ahead.
func (s *Side) exchange(op *ofi.Op) (posted bool, err error) {
	s.batch.Reset()
	if op != nil {
		s.batch.Add(op)
	}
	n, reaped, postErr, reapErr := s.Exchange(s.batch, ofi.BatchDone)
	for i := range reaped {
		s.done = append(s.done, s.batch.Completion(i))
	}
	return n == 1, errors.Join(postErr, reapErr)
}
