package main

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/doctor"
)

func TestDoctor(t *testing.T) {
	for _, other := range []string{"-info", "-demo", "-targets", "-verbs"} {
		_, err := parse([]string{"-doctor", other})
		require.ErrorContains(t, err, "-doctor excludes")
	}
	p, err := parse([]string{"-doctor", "-json", "-"})
	require.NoError(t, err)
	// Whatever is wrong with this machine is reported, and decides the exit status.
	var b bytes.Buffer
	err = diagnose(t.Context(), &b, p)
	var r doctor.Report
	require.NoError(t, json.Unmarshal(b.Bytes(), &r))
	assert.NotEmpty(t, r.Findings)
	assert.Equal(t, r.Verdict == doctor.Fail, err != nil)

	t.Setenv("RDMANET_PROVIDERS", "tpc")
	require.EqualError(t, diagnose(t.Context(), &b, p), "some checks have failed")
}
