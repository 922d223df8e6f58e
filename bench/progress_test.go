package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/bench/internal/workload"
)

// twoRounds simulates two rounds of two rows, each of which takes 2 s, half as long again as
// planned.
func twoRounds(width int) string {
	p := plan{works: []workload.Case{workload.Lat64}, rounds: 2, time: 1200 * time.Millisecond}
	var out bytes.Buffer
	clock := time.Unix(0, 0)
	b := &progress{w: &out, width: width, rounds: 2, rows: 4, now: func() time.Time { return clock }, began: clock, left: p.estimate()}
	for round := range 2 {
		b.round(round)
		for _, c := range p.cases() {
			j := p.job(c)
			j.Round = round + 1
			b.begin(j)
			clock = clock.Add(3 * time.Second)
			b.finish(j)
		}
	}
	b.end()
	return out.String()
}

func TestProgressInAFileIsALineARound(t *testing.T) {
	assert.Equal(t, "round 1 of 2\nround 2 of 2, 6s left\n", twoRounds(0))
}

func TestProgressOnATerminalIsOneLine(t *testing.T) {
	out := twoRounds(200)
	assert.NotContains(t, out, "\n")
	states := strings.Split(out, "\r\x1b[K")
	assert.Equal(t, []string{
		"",
		"1 of 4, round 1 of 2, 8s left: lat 64, tcp, 1 conns, 1 in flight",
		"2 of 4, round 1 of 2, 9s left: lat 64, unix, 1 conns, 1 in flight",
		"3 of 4, round 2 of 2, 6s left: lat 64, tcp, 1 conns, 1 in flight",
		"4 of 4, round 2 of 2, 3s left: lat 64, unix, 1 conns, 1 in flight",
		"",
	}, states)
	for _, state := range strings.Split(twoRounds(30), "\r\x1b[K") {
		assert.Less(t, len(state), 30, "it would wrap")
	}
}

func TestAFileIsNoTerminal(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	require.NoError(t, err)
	defer f.Close()
	p := plan{works: []workload.Case{workload.Lat64}, rounds: 3, time: time.Second}
	b := newProgress(f, p, p.cases())
	assert.Zero(t, b.width)
	assert.Equal(t, 6, b.rows)
	text, err := os.ReadFile(f.Name())
	require.NoError(t, err)
	assert.Equal(t, "2 rows, 3 rounds of 1s each, about 11s in all\n", string(text))
}
