package rdmanet

import (
	"math"
	"os"
	"strconv"
	"strings"
	"time"
)

// The environment variables are for those who cannot change the program. A variable does not
// count if the program has set its field.
const (
	// providersVariable lists providers, for Dialer.Providers and ListenConfig.Providers.
	providersVariable = "RDMANET_PROVIDERS"
	// prefixesVariable lists prefixes, for Dialer.EndpointPrefixes and ListenConfig.EndpointPrefixes.
	prefixesVariable = "RDMANET_ENDPOINT_PREFIXES"
	// memoryVariable is Transport.MemoryLimit, written like GOMEMLIMIT: a number of bytes, or
	// a number with a unit.
	memoryVariable = "RDMANET_MEMORY_LIMIT"
	// pollVariable is Transport.PollTime, as time.ParseDuration reads it, or "off".
	pollVariable = "RDMANET_POLL_TIME"
)

// listIn returns the entries of a variable that is a list.
func listIn(variable string) []string {
	return strings.FieldsFunc(os.Getenv(variable), func(r rune) bool { return r == ',' || r == ' ' })
}

// memoryLimit returns the limit in force, in bytes; 0 stands for the default.
func (t *Transport) memoryLimit() (int64, error) {
	text := os.Getenv(memoryVariable)
	if t.MemoryLimit != 0 || text == "" {
		return t.MemoryLimit, nil
	}
	n, ok := parseBytes(text)
	if !ok {
		return 0, invalid(memoryVariable, "%q is no number of bytes; use one such as 268435456 or 256MiB", text)
	}
	s := setting{memoryVariable, n, minMemoryLimit, math.MaxInt64, false, DefaultMemoryLimit, inBytes}
	return n, s.check()
}

// parseBytes reads a number of bytes with or without a unit, as Go's runtime does.
func parseBytes(text string) (int64, bool) {
	shift := 0
	for i, unit := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if rest, found := strings.CutSuffix(text, unit); found {
			text, shift = rest, 10*(i+1)
			break
		}
	}
	if shift == 0 {
		text = strings.TrimSuffix(text, "B")
	}
	n, err := strconv.ParseInt(text, 10, 64)
	return n << shift, err == nil && n<<shift>>shift == n
}

// pollTime returns the time in force; negative means no polling, and 0 the default.
func (t *Transport) pollTime() (time.Duration, error) {
	text := os.Getenv(pollVariable)
	switch {
	case t.PollTime != 0 || text == "":
		return t.PollTime, nil
	case text == "off":
		return -1, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return 0, invalid(pollVariable, "%q is no time; use one such as 50us, or off", text)
	}
	s := setting{pollVariable, int64(d), int64(minPollTime), int64(maxPollTime), false, int64(DefaultPollTime), inTime}
	return d, s.check()
}
