//go:build !linux

package load

import "errors"

func onOneCore(func() error) error {
	return errors.New("bench confines processes to one core with sched_setaffinity, which this system does not have")
}
