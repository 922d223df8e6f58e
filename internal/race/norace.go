//go:build !race

package race

// Enabled: see race.go.
const Enabled = false
