//go:build !linux || !cgo

package doctor

func versions() (compiled, library, file string) { return "", "", "" }

// Library names libfabric and its version, or says that there is none.
func Library() string { return "built without libfabric" }
