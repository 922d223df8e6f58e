//go:build !race

package rdmatest

// RaceDetector: see race.go.
const RaceDetector = false
