// Package race tells tests whether the race detector is on.
package race

// Fewer returns how often a test repeats something, such as playing another seed: n times, but a
// tenth of that under the race detector. Each takes up to ten times as long there, and what the
// detector finds depends mostly on which code runs, which a few of them show. make test runs such
// tests in both ways.
func Fewer(n int) int {
	if Enabled {
		return max(1, n/10)
	}
	return n
}
