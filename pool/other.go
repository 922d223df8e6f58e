//go:build !linux

package pool

import (
	"errors"
	"os"
	"time"
)

// Stubs for other systems, on which no fabric runs.

func adviseHuge([]byte) {}

func adviseSmall([]byte) {}

func populate(mem []byte) { touch(mem) }

func pause(d time.Duration) { time.Sleep(d) }

func mapSink([]byte) error { return errors.ErrUnsupported }

func mapShared(int, Mark) ([]byte, SharedName, error) { return nil, SharedName{}, errNotShared }

func findShared(*os.File, SharedName) (*os.File, int, error) { return nil, 0, errors.ErrUnsupported }

func openShared(*os.File, int, Mark) ([]byte, error) { return nil, errors.ErrUnsupported }

func dropShared(SharedName, int) {}
