package rdmavars_test

import (
	"encoding/json"
	"expvar"
	"fmt"
	"log"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/metrics"
	"github.com/seed202c38ff/fabricnet/rdmadebug/rdmavars"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

func TestPublish(t *testing.T) {
	tr := &rdmanet.Transport{MemoryLimit: 1 << 20}
	defer tr.Close()
	// Tests run in any order, so what other tests have published may be there.
	expvar.Do(func(kv expvar.KeyValue) {
		assert.Contains(t, []string{"cmdline", "memstats", "wanted", "rdma"}, kv.Key, "nothing is published at init")
	})
	require.NoError(t, rdmavars.Publish("fabricnet", tr))
	require.ErrorContains(t, rdmavars.Publish("fabricnet", tr), `"fabricnet" is taken`)
	require.ErrorContains(t, rdmavars.Publish("memstats", tr), "taken")
	var got map[string]any
	require.NoError(t, json.Unmarshal([]byte(expvar.Get("fabricnet").String()), &got))
	assert.InEpsilon(t, 1<<20, got["fabricnet.memory.limit"], 0)
	for d := range metrics.Descs() {
		if len(d.Labels) == 0 {
			assert.Contains(t, got, d.Name)
		}
	}
}

// TestPublishAtOnce: of many goroutines that publish the same name, one succeeds and none panics.
func TestPublishAtOnce(t *testing.T) {
	var wg sync.WaitGroup
	var published atomic.Int32
	for range 16 {
		wg.Go(func() {
			if rdmavars.Publish("wanted", nil) == nil {
				published.Add(1)
			}
		})
	}
	wg.Wait()
	assert.EqualValues(t, 1, published.Load())
}

func ExamplePublish() {
	t := &rdmanet.Transport{MemoryLimit: 64 << 20}
	defer t.Close()
	if err := rdmavars.Publish("rdma", t); err != nil {
		log.Fatal(err)
	}
	var vars map[string]any
	if err := json.Unmarshal([]byte(expvar.Get("rdma").String()), &vars); err != nil {
		log.Fatal(err)
	}
	fmt.Println(vars["fabricnet.memory.limit"])
	// Output: 6.7108864e+07
}
