package systemtest

import (
	"testing"

	"github.com/seed202c38ff/fabricnet/internal/rdmatest"
)

func TestMain(m *testing.M) { rdmatest.Main(m) }
