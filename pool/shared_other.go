//go:build !linux

package pool

import (
	"errors"
	"os"
)

func mapShared(int) ([]byte, SharedName, error) { return nil, SharedName{}, errNotShared }

func openShared(*os.File, SharedName, func(int64) error) ([]byte, error) {
	return nil, errors.ErrUnsupported
}

func dropShared(SharedName, int) {}
