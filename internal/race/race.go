//go:build race

package race

// Enabled says that the race detector is on. Everything takes ten times as long then, and even
// longer while other packages' tests are running.
const Enabled = true
