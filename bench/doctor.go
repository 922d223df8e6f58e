package main

import (
	"context"
	"errors"
	"io"

	"github.com/seed202c38ff/fabricnet/internal/doctor"
)

// diagnose prints what the doctor says, as JSON with -json -.
func diagnose(ctx context.Context, w io.Writer, p plan) error {
	m, err := doctor.Local(ctx)
	if err != nil {
		return err
	}
	report := doctor.Examine(m)
	if p.jsonFile == "-" {
		err = report.WriteJSON(w)
	} else {
		err = errors.Join(report.WriteText(w), save(p.jsonFile, report.WriteJSON), save(p.textFile, report.WriteText))
	}
	if err != nil {
		return err
	}
	return report.Err()
}
