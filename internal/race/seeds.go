// Package race tells tests whether the race detector is on.
package race

// Seeds returns how many of n worlds a test plays on virtual time: all of them, but a tenth under
// the race detector. Each takes ten times as long there, and the detector finds in a few of them
// what it finds in many, since that depends on which code runs and not on what comes of it. make
// test runs such tests in both ways.
func Seeds(n int) int {
	if Enabled {
		return max(1, n/10)
	}
	return n
}
