//go:build !linux || !cgo

package doctor

func versions() (compiled, library, file string) { return "", "", "" }
