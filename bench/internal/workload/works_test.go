package workload

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func texts(cases []Case) (list []string) {
	for _, c := range cases {
		list = append(list, c.WorkText())
	}
	return list
}

func TestPeersWorks(t *testing.T) {
	assert.Equal(t, []string{
		"lat 64 among 0 idle peers", "lat 64 among 10 idle peers", "lat 64 among 63 idle peers", "lat 64 among 250 idle peers",
		"bw 64K among 0 idle peers", "bw 64K among 10 idle peers", "bw 64K among 63 idle peers", "bw 64K among 250 idle peers",
		"lat 64 by 11 peers", "lat 64 by 64 peers", "lat 64 by 251 peers",
		"bw 64K by 11 peers", "bw 64K by 64 peers", "bw 64K by 251 peers",
		"idle of 63 peers", "idle of 250 peers",
	}, texts(PeersWorks([]int{250, 0, 63, 10, 63})))
	assert.Equal(t, []string{"lat 64 among 0 idle peers", "bw 64K among 0 idle peers"}, texts(PeersWorks([]int{0})))
	last := func(counts ...int) string { w := texts(PeersWorks(counts)); return w[len(w)-1] }
	assert.Equal(t, "idle of 5 peers", last(0, 5))
	assert.Equal(t, "bw 64K by 2 peers", last(1), "the second peer is the first that is added")
}

func TestAllWorksGivesEachModeWhatItHas(t *testing.T) {
	works, err := Works([]string{ModeLat, ModeRPC, ModeConn, ModeIdle}, []int{64, 128}, []int{1, 8}, []int{1})
	require.NoError(t, err)
	assert.Equal(t, []Case{
		{Mode: ModeLat, Size: 64, Inflight: 1, Conns: 1},
		{Mode: ModeLat, Size: 128, Inflight: 1, Conns: 1},
		{Mode: ModeRPC, Size: 64, Inflight: 1, Conns: 1},
		{Mode: ModeRPC, Size: 64, Inflight: 8, Conns: 1},
		{Mode: ModeRPC, Size: 128, Inflight: 1, Conns: 1},
		{Mode: ModeRPC, Size: 128, Inflight: 8, Conns: 1},
		{Mode: ModeConn, Size: 1, Inflight: 1, Conns: 1},
		{Mode: ModeIdle, Size: 1, Inflight: 1, Conns: 1},
	}, works)
	_, err = Works([]string{"latency"}, nil, nil, nil)
	assert.ErrorContains(t, err, `"latency"`)
}

func TestStrideOfOddSizesIsRefused(t *testing.T) {
	for size, want := range map[int]int{8: 8, 100: 100, 4096: 4096, 1 << 20: 4096} {
		got, err := Stride(size)
		require.NoError(t, err)
		assert.Equal(t, want, got)
	}
	for _, size := range []int{1, 7, 4097, 10_000} {
		_, err := Stride(size)
		assert.Error(t, err, size)
	}
}
