//go:build !unix

package load

import (
	"errors"
	"time"
)

func cpuTime() (time.Duration, error) {
	return 0, errors.New("bench counts CPU time with getrusage, which this system does not have")
}
