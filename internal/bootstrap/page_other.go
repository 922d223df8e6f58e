//go:build !linux

package bootstrap

import (
	"errors"
	"fmt"
)

// CreatePage fails: only Linux has pages.
func CreatePage() (*Page, error) { return nil, fmt.Errorf("%w: %w", errPage, errors.ErrUnsupported) }

// OpenPage fails: only Linux has pages.
func OpenPage(name string, _ [16]byte) (*Page, error) {
	if err := checkPageName(name); err != nil {
		return nil, err
	}
	return nil, fmt.Errorf("%w: %w", errPage, errors.ErrUnsupported)
}

// Unlink does nothing.
func (p *Page) Unlink() error { return nil }

func (p *Page) meet() error { return nil }

func (r *ringer) ring() {}

// Close does nothing.
func (p *Page) Close() error { return nil }
