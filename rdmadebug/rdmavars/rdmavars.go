// Package rdmavars publishes the statistics of Transports through expvar. Importing it
// imports expvar, which registers /debug/vars with http.DefaultServeMux.
package rdmavars

import (
	"expvar"
	"fmt"
	"sync"

	"github.com/seed202c38ff/fabricnet/metrics"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

var publishing sync.Mutex // expvar panics on a name that is taken

// Publish publishes the statistics of t, or of rdmanet.DefaultTransport if t is nil, as
// a variable: an object with the metrics by name, in which a metric with labels is an
// object with the values by label value, nested once for each label. It fails if the
// name is taken. A name stays taken for good.
func Publish(name string, t *rdmanet.Transport) error {
	publishing.Lock()
	defer publishing.Unlock()
	if expvar.Get(name) != nil {
		return fmt.Errorf("expvar: the name %q is taken", name)
	}
	expvar.Publish(name, expvar.Func(func() any { return values(t) }))
	return nil
}

func values(t *rdmanet.Transport) map[string]any {
	out := make(map[string]any)
	for s := range metrics.Samples(t.Stats()) {
		m, key := out, s.Name
		for _, v := range s.Values {
			next, ok := m[key].(map[string]any)
			if !ok {
				next = make(map[string]any)
				m[key] = next
			}
			m, key = next, v
		}
		m[key] = s.Value
	}
	return out
}
