package pool_test

import (
	"errors"
	"fmt"
	"log"

	"github.com/seed202c38ff/fabricnet/pool"
)

// A Budget bounds all memory that is charged to it.
func ExampleBudget() {
	budget := pool.NewBudget(1 << 20) // bytes
	slots := pool.NewSlots(budget, nil, 4096)
	if err := slots.Grow(64); err != nil {
		log.Fatal(err)
	}
	fmt.Println("used:", budget.Stats().Used)
	fmt.Println("no room:", errors.Is(slots.Grow(256), pool.ErrBudget))
	if err := slots.Close(); err != nil {
		log.Fatal(err)
	}
	fmt.Println("used:", budget.Stats().Used, "at most:", budget.Stats().High)
	// Output:
	// used: 262144
	// no room: true
	// used: 0 at most: 262144
}

// Slots are for small frames: all have the same size, and are numbered from 0.
func ExampleSlots() {
	// Without a Registrar no fabric can touch the memory.
	slots := pool.NewSlots(pool.NewBudget(0), nil, 128)
	defer slots.Close()
	if err := slots.Grow(2); err != nil {
		log.Fatal(err)
	}
	slot, ok := slots.Get()
	fmt.Println(ok, len(slots.Bytes(slot)), "bytes,", slots.Free(), "of", slots.Len(), "free")
	slots.Put(slot)
	fmt.Println(slots.Free(), "free")
	// Output:
	// true 128 bytes, 1 of 2 free
	// 2 free
}

// An Arena has blocks whose sizes are powers of two, such as landing rings. A lease says
// that the peer may write to one.
func ExampleArena() {
	arena := pool.NewArena(pool.NewBudget(0), nil, pool.AccessRemoteWrite, 1<<20)
	defer arena.Close()
	ring, err := arena.Alloc(100_000) // bytes
	if err != nil {
		log.Fatal(err)
	}
	var leases pool.Leases
	lease, err := leases.Grant(ring, "a stream")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("a ring of", len(lease.Ring.Bytes), "bytes")

	lease.Release(60_000) // bytes that were read: the peer may write there again
	if err := lease.Return(60_000); err != nil {
		log.Fatal(err)
	}
	fmt.Println("drained:", lease.Drained(), "dropped:", leases.Drop(lease))
	fmt.Println("in use:", arena.Stats().InUse)
	// Output:
	// a ring of 131072 bytes
	// drained: true dropped: true
	// in use: 0
}
