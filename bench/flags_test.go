package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/bench/internal/workload"
)

func TestFlagsOfOutputs(t *testing.T) {
	p, err := parse([]string{"-demo", "-csv", "a", "-benchfmt", "b", "-report", "c", "-profile", "d"})
	require.NoError(t, err)
	assert.Equal(t, []string{"a", "b", "c", "d"}, []string{p.csvFile, p.benchFile, p.reportDir, p.profileDir})
}

func TestFlagsOfTwoMachines(t *testing.T) {
	p, err := parse([]string{"-c", "storage7", "-demo", "-providers", "net"})
	require.NoError(t, err)
	assert.Equal(t, "storage7:18516", p.server)
	for _, c := range p.cases() {
		assert.NotEqual(t, workload.TransportUnix, c.Transport)
	}
	p, err = parse([]string{"-c", "fe80::1%eth0", "-port", "99"})
	require.NoError(t, err)
	assert.Equal(t, "[fe80::1%eth0]:99", p.server)
	p, err = parse([]string{"-s", "-host", "10.0.0.1", "-port", "0"})
	require.NoError(t, err)
	assert.True(t, p.serve)

	for _, args := range [][]string{
		{"-s", "-c", "x"}, {"-s", "-from", "x"}, {"-c", "x", "-from", "y"}, {"-s", "-targets"}, {"-c", "x", "-targets"}, {"-c", "x", "-verbs"},
		{"-c", "x", "-onecore"}, {"-c", "x", "-busy"}, {"-from", "x", "-targets"}, {"-from", "x", "-profile", "y"},
		{"-s", "-host", "0.0.0.0"}, {"-s", "-host", "::"}, {"-c", "x", "-port", "0"}, {"-s", "-port", "65536"}, {"-s", "-port", "-1"},
	} {
		_, err := parse(args)
		assert.Error(t, err, "%v", args)
	}
}
