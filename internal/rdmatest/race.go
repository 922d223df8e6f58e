//go:build race

package rdmatest

// RaceDetector says that everything takes ten times as long, and even longer while other
// packages' tests are running.
const RaceDetector = true
