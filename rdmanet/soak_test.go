package rdmanet_test

import "flag"

var (
	soak = flag.Bool("soak", false, "repeat what depends on timing as often as make soak does")
	part = flag.Int("soak.part", 1, "with -soak, repeat it so many times less often")
)

// rounds is how often a test repeats something: few times each time the tests
// run, many times in make soak, or a part of that.
func rounds(few, many int) int { return max(few, allRounds(few, many) / *part) }

// allRounds is rounds for what a part of would say something else.
func allRounds(few, many int) int {
	if *soak {
		return many
	}
	return few
}
