package rdmanet_test

import "flag"

var (
	soak = flag.Bool("soak", false, "repeat what depends on timing as often as make soak does")
	part = flag.Int("soak.part", 1, "with -soak, repeat it so many times less often")
)

// rounds is how often a test repeats something: few times each time the tests
// run, many times in make soak.
func rounds(few, many int) int {
	if *soak {
		return max(few, many / *part)
	}
	return few
}
