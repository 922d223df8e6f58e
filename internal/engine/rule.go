package engine

import "github.com/seed202c38ff/fabricnet/internal/fabric"

// Rule is how the target learns that an RDMA write has landed (SPEC.md
// section 5). The writer chooses it by what its endpoint offers.
type Rule uint8

const (
	byCQData  Rule = 1 + iota // completion data is the notification
	bySAW                     // a send posted after the write arrives after it
	byDeliver                 // wait for FI_DELIVERY_COMPLETE, then send
	byNothing                 // no rule holds: all data goes in frames
)

// proofSize is how many bytes completion data must have for a proof to fit in.
const proofSize = 8

// ChooseRule takes the cheapest rule that a offers, but four bytes of completion data only
// where send-after-write is not to be had: they have no room for the proof of whose write it is.
func ChooseRule(a fabric.Attr) Rule {
	switch {
	case a.CQDataSize >= proofSize:
		return byCQData
	case a.Order&fabric.SendAfterWrite != 0:
		return bySAW
	case a.CQDataSize >= 4:
		return byCQData
	case a.DeliveryComplete:
		return byDeliver
	}
	return byNothing
}

// String says how large data travels by the rule.
func (r Rule) String() string {
	switch r {
	case byCQData:
		return "RDMA write with completion data"
	case bySAW:
		return "RDMA write, then send"
	case byDeliver:
		return "RDMA write, then send after delivery"
	}
	return "send"
}

// writeSlots is how many receive slots a write to the stream's ring takes: one for the frame
// that announces it, and one for its completion data, if any. A write that continues another
// gives the first one back.
func (s *stream) writeSlots() uint32 {
	if s.p.c.rule == byCQData && !s.copies() {
		return 2
	}
	return 1
}
