package workload

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestSizeText(t *testing.T) {
	for n, want := range map[int]string{1: "1", 1000: "1000", 1 << 10: "1K", 96 << 10: "96K", 4 << 20: "4M", 1<<20 + 1<<10: "1025K"} {
		assert.Equal(t, want, SizeText(n))
	}
}

func TestWorkText(t *testing.T) {
	assert.Equal(t, "conn", Case{Mode: ModeConn, Size: 1, Inflight: 1, Conns: 1}.WorkText())
	assert.Equal(t, "rpc 64 x8 on 2 conns", Case{Mode: ModeRPC, Size: 64, Inflight: 8, Conns: 2}.WorkText())
	assert.Equal(t, "lat 64 on 1 core", Case{Mode: ModeLat, Size: 64, Inflight: 1, Conns: 1, OneCore: true}.WorkText())
}
