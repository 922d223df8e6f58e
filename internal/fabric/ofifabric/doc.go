// Package ofifabric implements fabric.Fabric over libfabric. Without cgo, on systems other than
// Linux, and where libfabric cannot be loaded, its methods return fabric.ErrUnsupported.
package ofifabric
