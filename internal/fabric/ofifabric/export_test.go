//go:build linux && cgo

package ofifabric

// SetRandomRegion has all regions get one number, until undo.
func SetRandomRegion(id [16]byte) (undo func()) {
	random := randomRegion
	randomRegion = func() [16]byte { return id }
	return func() { randomRegion = random }
}
