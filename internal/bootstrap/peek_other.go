//go:build !unix

package bootstrap

import "errors"

func peek(uintptr, []byte) (n int, over bool, err error) {
	return 0, false, errors.ErrUnsupported // there is no fabric either
}
