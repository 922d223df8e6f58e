package pool

// Access says what a memory region is registered for.
type Access uint8

const (
	// AccessLocal memory is used by this side's own operations only: sends,
	// receives, and RDMA writes as their source. A peer can never reach it.
	AccessLocal Access = iota
	// AccessRemoteWrite memory is the target of one peer's RDMA writes.
	AccessRemoteWrite
)

// Region is memory that is registered with a domain, see fi_mr(3).
type Region interface {
	// Desc is the local descriptor that operations on this memory carry, 0
	// where the provider asks for none.
	Desc() uintptr
	// Key is the protection key that the peer names in RDMA writes.
	Key() uint64
	// Base is how the peer addresses the region's first byte: by its virtual
	// address if the provider asks for FI_MR_VIRT_ADDR, otherwise by 0.
	Base() uint64
	// Close withdraws the registration. The memory must outlive the call.
	Close() error
}

// Unmapper is a Registrar that wants to know when memory that it has registered is about
// to lose its addresses, even though the registration has been withdrawn by then.
type Unmapper interface {
	Unmapping(mem []byte)
}

// Registrar registers memory with a domain. The memory must not be Go heap.
type Registrar interface {
	Register(mem []byte, access Access) (Region, error)
}
