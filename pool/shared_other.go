//go:build !linux

package pool

import (
	"errors"
	"os"
)

func mapShared(int, Mark) ([]byte, SharedName, error) { return nil, SharedName{}, errNotShared }

func findShared(*os.File, SharedName) (*os.File, int, error) { return nil, 0, errors.ErrUnsupported }

func openShared(*os.File, int, Mark) ([]byte, error) { return nil, errors.ErrUnsupported }

func dropShared(SharedName, int) {}
