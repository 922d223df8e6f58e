//go:build !race

package rdmanet_test

const raceDetector = false
