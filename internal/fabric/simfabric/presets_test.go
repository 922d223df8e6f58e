package simfabric

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
)

// TestPresets pins what the engine relies on nowhere, so that no other test would notice
// that a provider offers too much.
func TestPresets(t *testing.T) {
	for _, tt := range []struct {
		p              Personality
		order          fabric.Order
		message, write uint64
	}{
		{Verbs(), fabric.SendAfterSend | fabric.SendAfterWrite | fabric.WriteAfterWrite, 8 << 20, 0},
		{EFA(), fabric.SendAfterSend, 0, 0},
		{EFADirect(), 0, 8 << 10, 1 << 30},
		{CXI(), fabric.SendAfterSend | fabric.WriteAfterWrite, 1<<32 - 1, 0},
		{OPX(), 0, 0, 0},
		{PSM3(), fabric.SendAfterSend, 1<<32 - 1<<12, 0},
	} {
		assert.Equal(t, tt.order, tt.p.Order, "%s: order", tt.p.Provider)
		assert.Equal(t, tt.message, tt.p.MaxMsgSize, "%s: longest message", tt.p.Provider)
		assert.Equal(t, tt.write, tt.p.MaxRMASize, "%s: longest write", tt.p.Provider)
	}
}
