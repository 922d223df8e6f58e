//go:build cgo

package main

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/doctor"
)

// These measurements use more of the fabric than the methods of net.Conn.
func TestMeasureOverSharedMemory(t *testing.T) {
	for _, c := range []cell{
		{Mode: modeLat, Size: 64, Inflight: 1, Conns: 1, OneCore: true},
		{Mode: modeBW, Size: 64 << 10, Inflight: 1, Conns: 3},
		{Mode: modeZC, Size: 1 << 20, Inflight: 1, Conns: 1},
		{Mode: modeZC, Size: 64, Inflight: 1, Conns: 1},
		{Mode: modeHTTP, Size: bodySize, Inflight: 1, Conns: 1},
		{Mode: modeIdle, Size: 1, Inflight: 1, Conns: 3},
	} {
		testMeasure(t, c.over(overShm))
	}
	testMeasure(t, bw64K.over(overFar))
}

func TestCrowdOverFabrics(t *testing.T) {
	for _, v := range []carriage{overShm, overTCPRxm} {
		t.Run(v.provider, func(t *testing.T) { testCrowd(t, v) })
	}
}

// The doctor.Inventory of this machine contains what every machine with libfabric has.
func TestInfoOfThisMachine(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, info(t.Context(), &b, plan{local: "127.0.0.1", jsonFile: "-", providers: []string{"all"}}))
	var inv doctor.Inventory
	require.NoError(t, json.Unmarshal(b.Bytes(), &inv))
	assert.NotEmpty(t, inv.Compiled)
	assert.Equal(t, "libfabric "+inv.InUse, doctor.Library())
	require.Len(t, inv.Choices, 1)
	first := inv.Choices[0].Providers[0]
	assert.Equal(t, "shm", first.Provider)
	assert.Equal(t, 1, first.Rank)

	b.Reset()
	require.NoError(t, info(t.Context(), &b, plan{providers: []string{"shm"}}))
	assert.Contains(t, b.String(), "for conns at 127.0.0.1:")
	assert.Contains(t, b.String(), "not in the list of providers")
}
