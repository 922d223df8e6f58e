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

// An Arena has blocks whose sizes are powers of two, such as landing rings.
func ExampleArena() {
	arena := pool.NewArena(pool.NewBudget(0), nil, pool.AccessRemoteWrite, 1<<20)
	defer arena.Close()
	slab, err := arena.Map(1 << 20)
	if err != nil {
		log.Fatal(err)
	}
	arena.Add(slab)
	ring := arena.Get(100_000) // bytes
	fmt.Println("a ring of", len(ring.Bytes), "bytes")
	arena.Free(ring)
	fmt.Println("in use:", arena.Stats().InUse)
	// Output:
	// a ring of 131072 bytes
	// in use: 0
}
