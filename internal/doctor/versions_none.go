//go:build linux && !cgo

package doctor

func versions() (compiled, library string) { return "", "" }
