package workload

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestBucketsCoverAllValuesInOrder(t *testing.T) {
	last := -1
	for shift := range 63 {
		for _, v := range []uint64{1<<shift - 1, 1 << shift, 1<<shift + 1<<shift/2} {
			i := bucket(v)
			require.Less(t, i, buckets)
			assert.GreaterOrEqual(t, i, last, "value %d", v)
			assert.InEpsilon(t, float64(v)+1, float64(middle(i))+1, 1.0/half, "value %d", v)
			last = i
		}
	}
	assert.Equal(t, buckets-1, bucket(math.MaxUint64))
}

func TestQuantileMatchesSortedSamples(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var all, part Histogram
	var samples []time.Duration
	for i := range 10_000 {
		d := time.Duration(math.Exp(random.Float64() * 20))
		samples = append(samples, d)
		if i%3 == 0 {
			part.Add(d)
			continue
		}
		all.Add(d)
	}
	all.Merge(&part)
	slices.Sort(samples)
	require.EqualValues(t, len(samples), all.Total)
	for _, q := range []float64{0.01, 0.5, 0.9, 0.99, 1} {
		want := samples[int(q*float64(len(samples)))-1]
		assert.InEpsilon(t, float64(want), float64(all.Quantile(q)), 1.0/half, "quantile %v", q)
	}
}

func TestQuantileOfLittle(t *testing.T) {
	var h Histogram
	assert.Zero(t, h.Quantile(0.5))
	h.Add(7)
	assert.EqualValues(t, 7, h.Quantile(0.5))
	assert.EqualValues(t, 7, h.Quantile(0.99))
	h.Add(-1) // a clock that went backwards
	assert.EqualValues(t, 0, h.Quantile(0.5))
}
