package rdmanet

import "github.com/seed202c38ff/fabricnet/internal/fabric"

// NewTransport returns a Transport over a fabric of the test's choice.
func NewTransport(f fabric.Fabric) *Transport { return &Transport{fabric: f} }
