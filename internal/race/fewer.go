// Package race tells tests whether the race detector is on.
package race

// Fewer returns how often a test on virtual time does something, such as playing another seed: n
// times, but a tenth of that under the race detector. Each takes ten times as long there, and the
// detector finds in a few of them what it finds in many, since that depends on which code runs and
// not on what comes of it. make test runs such tests in both ways.
func Fewer(n int) int {
	if Enabled {
		return max(1, n/10)
	}
	return n
}
