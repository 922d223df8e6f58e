package main

import (
	"context"
	"errors"
	"io"
	"slices"

	"github.com/seed202c38ff/fabricnet/internal/doctor"
)

// info prints the inventory, as JSON with -json -.
func info(ctx context.Context, w io.Writer, p plan) error {
	locals, err := doctor.LocalAddrs(p.local)
	if err != nil {
		return err
	}
	providers := p.providers
	if slices.Equal(providers, []string{"all"}) {
		providers = nil
	}
	inv, err := doctor.TakeInventory(ctx, locals, providers)
	if err != nil {
		return err
	}
	if p.jsonFile == "-" {
		return inv.WriteJSON(w)
	}
	return errors.Join(inv.WriteText(w), save(p.jsonFile, inv.WriteJSON), save(p.textFile, inv.WriteText))
}
