//go:build !linux

package pool

import "errors"

func newSink(int) ([]byte, error) { return nil, errors.ErrUnsupported }

func mapSink(_, _ []byte) error { return errors.ErrUnsupported }
