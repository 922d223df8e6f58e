//go:build !linux

package bootstrap

import (
	"errors"
	"fmt"

	"github.com/seed202c38ff/fabricnet/internal/engine"
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

// Ring does nothing.
func (p *Page) Ring(bool) {}

// Bell returns nil.
func (p *Page) Bell() engine.Bell { return nil }

// Listen does nothing.
func (p *Page) Listen(func()) {}

// Close does nothing.
func (p *Page) Close() error { return nil }
