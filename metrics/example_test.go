package metrics_test

import (
	"fmt"

	"github.com/seed202c38ff/fabricnet/metrics"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// An exporter for another metrics system can be built on Samples.
func ExampleSamples() {
	t := &rdmanet.Transport{MemoryLimit: 64 << 20}
	defer t.Close()
	for s := range metrics.Samples(t.Stats()) {
		if s.Name == "fabricnet.memory.limit" {
			fmt.Println(s.Name, s.Value, s.Unit, s.Counter)
		}
	}
	// Output: fabricnet.memory.limit 67108864 By false
}
