// Package ofifabric implements fabric.Fabric over libfabric. Without cgo, or
// off Linux, its methods return fabric.ErrUnsupported.
package ofifabric
