//go:build linux && cgo

package ofi

// #include "shim.h"
import "C"

import "sync"

// opening is held from when signal dispositions are saved until they are restored, so that no call
// takes a handler that another call's provider has just installed for Go's own.
var opening sync.Mutex

// holdSignals saves the process's signal dispositions (sigaction(2)) and returns a function that
// restores those that a provider has changed since.
func holdSignals() (restore func()) {
	opening.Lock()
	saved := C.ofi_signals_save()
	return func() {
		if saved != nil {
			C.ofi_signals_restore(saved)
		}
		opening.Unlock()
	}
}
