package bootstrap_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/seed202c38ff/fabricnet/internal/bootstrap"
)

func TestHostID(t *testing.T) {
	first, again := bootstrap.HostID(), bootstrap.HostID()
	assert.NotZero(t, first)
	assert.Equal(t, first, again)
}
