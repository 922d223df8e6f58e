//go:build race

package rdmanet_test

// raceDetector says that everything takes ten times as long, and even longer while other
// packages' tests are running.
const raceDetector = true
