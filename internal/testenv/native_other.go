//go:build !linux || !cgo

package testenv

// Native is the provider's name elsewhere: without Linux and cgo it is not there.
const Native = "tcp"
