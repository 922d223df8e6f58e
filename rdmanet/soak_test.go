package rdmanet_test

import "flag"

var (
	soak = flag.Bool("soak", false, "repeat what depends on timing as often as make soak does")
	part = flag.Int("soak.part", 1, "with -soak, repeat it so many times less often")
)

// rounds returns how often a test repeats something: few times in an ordinary run, and many
// times in make soak, or 1/part of that.
func rounds(few, many int) int { return max(few, allRounds(few, many) / *part) }

// allRounds is rounds without -soak.part, for numbers a part of which would test something else.
func allRounds(few, many int) int {
	if *soak {
		return many
	}
	return few
}
