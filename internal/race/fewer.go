// Package race tells tests whether the race detector is on.
package race

// Fewer returns how much of something a test on virtual time does, such as how many seeds it plays:
// n, but a tenth of that under the race detector. Each takes ten times as long there, and what the
// detector finds depends mostly on which code runs, which a few of them show. make test runs such
// tests in both ways.
func Fewer(n int) int {
	if Enabled {
		return max(1, n/10)
	}
	return n
}
