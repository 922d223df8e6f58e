//go:build !linux || !cgo

package testenv

// Native is not there.
const Native = "tcp"
