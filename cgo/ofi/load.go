//go:build linux && cgo

package ofi

/*
#cgo LDFLAGS: -ldl
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"unsafe"
)

const (
	// libraryVar is the variable that names the file to load. If it is set, no other file is tried.
	libraryVar = "RDMANET_LIBFABRIC"
	// oldest is the first version that this package works with.
	oldest = 1<<16 | 17
)

// places are where to look for libfabric: wherever the dynamic linker does, ld.so(8), then where
// the installer of EFA's software puts it.
var places = []string{
	"libfabric.so.1",
	"/opt/amazon/efa/lib64/libfabric.so.1",
	"/opt/amazon/efa/lib/libfabric.so.1",
}

// LoadError says why there is no libfabric, and what can be done about it. It stays the same for as
// long as the process runs.
type LoadError struct{ text string }

func (e *LoadError) Error() string { return e.text }

// library is the libfabric in use.
type library struct {
	version    C.uint32_t // major<<16 | minor
	text, path string
	abi        int
}

// api returns the interface version to ask for. The library refuses one newer than itself, and one
// newer than the headers that this package was compiled with could change the layout of structures.
func (l *library) api() C.uint32_t { return min(l.version, C.ofi_compiled()) }

// load loads libfabric, once.
var load = sync.OnceValues(func() (*library, error) {
	if C.OFI_HAS_HEADERS == 0 {
		// Go's build cache does not notice that headers have been installed.
		return nil, &LoadError{"this program was built without libfabric's headers: install libfabric-dev (Debian, Ubuntu), " +
			"libfabric-devel (Fedora, RHEL) or libfabric (Arch) where it is built, and build it anew with go build -a and its other flags"}
	}
	if C.OFI_HAS_LOADER == 0 {
		return nil, &LoadError{"this program was built for a C library without dlvsym(3): build it with glibc"}
	}
	if C.ofi_static() != 0 {
		return nil, &LoadError{"this program is linked statically, and so cannot load libfabric: build it without -static in -extldflags"}
	}
	return search()
})

// Load loads libfabric (dlopen), unless that was done before. Its error is a *LoadError. There is
// no need to call it first: whatever needs the library loads it.
func Load() error {
	_, err := load()
	return err
}

// Setenv sets a variable for libfabric, unless it is set already (setenv(3)). libfabric and its
// libraries read their environment when they are loaded and once more at the first GetInfo.
func Setenv(name, value string) {
	cname, cvalue := C.CString(name), C.CString(value)
	defer C.free(unsafe.Pointer(cname))
	defer C.free(unsafe.Pointer(cvalue))
	C.setenv(cname, cvalue, 0)
}

// search loads the first libfabric that will do.
func search() (*library, error) {
	if file := os.Getenv(libraryVar); file != "" {
		lib, why := open(file)
		if why != "" {
			return nil, &LoadError{libraryVar + ": " + why + "; correct or unset the variable, no other file is tried"}
		}
		return lib, nil
	}
	var tried []string
	for _, file := range places {
		lib, why := open(file)
		if why == "" {
			return lib, nil
		}
		tried = append(tried, why)
	}
	return nil, &LoadError{"install libfabric1 (Debian, Ubuntu) or libfabric (Fedora, RHEL, Arch), or name the file in " +
		libraryVar + "; tried " + strings.Join(tried, "; ")}
}

// open loads a file (dlopen, dlvsym), or says why it could not. It restores the signal dispositions
// that constructors change.
func open(file string) (*library, string) {
	restore := holdSignals()
	defer restore()
	name := C.CString(file)
	defer C.free(unsafe.Pointer(name))
	var c C.struct_ofi_library
	if C.ofi_load(name, &c) != 0 {
		why := C.GoString(&c.why[0])
		if !strings.Contains(why, file) {
			why = file + ": " + why
		}
		return nil, why
	}
	lib := &library{c.version, C.GoString(c.text), C.GoString(c.path), int(c.abi)}
	if lib.version < oldest {
		return nil, fmt.Sprintf("%s: libfabric %s is too old: 1.17 is needed", lib.path, lib.text)
	}
	return lib, ""
}

// CompiledVersion returns the major and minor version of the headers that this package was compiled
// with, "" if there were none.
func CompiledVersion() string {
	if C.OFI_HAS_LOADER == 0 {
		return ""
	}
	v := C.ofi_compiled()
	return fmt.Sprintf("%d.%d", v>>16, v&0xffff)
}

// LibraryVersion returns the version of the library in use with all of its numbers, as in "1.17.0"
// (fi_tostr with FI_TYPE_VERSION), "" if there is none. It loads the library.
func LibraryVersion() string {
	lib, err := load()
	if err != nil {
		return ""
	}
	return lib.text
}

// LibraryPath returns the file that the library in use was loaded from (dladdr), "" if there is
// none. It loads the library.
func LibraryPath() string {
	lib, err := load()
	if err != nil {
		return ""
	}
	return lib.path
}
