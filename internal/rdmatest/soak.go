package rdmatest

import "flag"

var (
	// Soak says that the long form of tests was asked for, as by make soak.
	Soak = flag.Bool("soak", false, "repeat what depends on timing as often as make soak does")
	part = flag.Int("soak.part", 1, "with -soak, repeat it so many times less often")
)

// Rounds returns how often a test repeats something: few times in an ordinary run, and many
// times in make soak, or 1/part of that.
func Rounds(few, many int) int { return max(few, AllRounds(few, many) / *part) }

// AllRounds is Rounds without -soak.part, for numbers a part of which would test something else.
func AllRounds(few, many int) int {
	if *Soak {
		return many
	}
	return few
}
