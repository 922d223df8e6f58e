//go:build race

package rdmanet_test

// raceDetector: everything takes ten times as long, and longer beside other packages' tests.
const raceDetector = true
