package engine

import (
	"github.com/seed202c38ff/fabricnet/framing"
	"github.com/seed202c38ff/fabricnet/internal/fabric"
)

// How a peer learns that large data has landed: by one of the rules of SPEC.md section 5. The
// writer chooses it by what its endpoint offers, and its Attach says so, so that the reader believes no
// other completion data.
//
//	rule        the write               what announces it
//	byCQData    fi_writedata            its completion data says that it has landed, and a Large frame
//	                                    where it belongs; without one it continues the write before it
//	bySAW       fi_write                a Large frame behind it, which arrives after it
//	byDeliver   fi_write, and           a Large frame after its completion, which means delivery
//	            FI_DELIVERY_COMPLETE
//	byCopy      a copy: see mapped.go   a Large frame after the copy
//	byBareData  as byCQData, but the completion data has no room for a proof of whose write it is
//	byNothing   none                    all data goes in frames
//
// With a Large frame for every write, streams and round trips of 64 KiB and 1 MiB over net took 1.2 to
// 1.3 times as long (medians of 15 pairs, AMD EPYC, libfabric 1.17): hence writes that continue others.

// Rule is how the target learns that large data has landed: the number of a rule of SPEC.md section 5.
type Rule uint8

const (
	byNothing Rule = iota
	byCQData
	bySAW
	byDeliver
	byCopy
	byBareData
)

// proofSize is how many bytes completion data must have for a proof to fit in.
const proofSize = 8

// ChooseRule takes the cheapest rule that a offers, but completion data without a proof only where
// send-after-write is not to be had.
func ChooseRule(a fabric.Attr) Rule {
	switch {
	case a.SameHost:
		return byCopy
	case a.CQDataSize >= proofSize:
		return byCQData
	case a.Order&fabric.SendAfterWrite != 0:
		return bySAW
	case a.CQDataSize >= 4:
		return byBareData
	case a.DeliveryComplete:
		return byDeliver
	}
	return byNothing
}

var ruleTexts = [...]string{
	byNothing:  "send",
	byCQData:   "RDMA write with completion data",
	bySAW:      "RDMA write, then send",
	byDeliver:  "RDMA write, then send after delivery",
	byCopy:     "copy to a ring that both processes map, then send",
	byBareData: "RDMA write with completion data",
}

// String says how large data travels by the rule, for people.
func (r Rule) String() string { return ruleTexts[r] }

// hasData reports whether writes carry completion data.
func (r Rule) hasData() bool { return r == byCQData || r == byBareData }

// slots is how many of the peer's receive slots a write to a ring needs at most: for the Large frame, and for
// completion data. A copy takes its slot when it has ended.
func (r Rule) slots() uint32 {
	if r.hasData() {
		return 2
	}
	return 1
}

// postWrite queues a write that is done by the fabric, and what can be said of it before it is complete. The
// large and pos of tx announce it. continues says that it is as long as the write before it, and follows that in
// the stream.
func (p *peer) postWrite(op fabric.Op, tx txOp, continues bool) {
	rule := p.c.rule
	slots := rule.slots()
	if rule.hasData() {
		imm := framing.MakeImmediate(tx.large.Lease, tx.large.Seq, continues)
		op.Kind, op.Data = fabric.WriteData, uint64(imm)
		if rule == byCQData { // there is room for the proof
			op.Data = imm.Proven(p.proofOut)
		}
	}
	p.out = append(p.out, outOp{op, tx})
	switch {
	case rule == byDeliver: // see writeDone
	case rule == bySAW:
		p.announce(&tx, framing.FlagLanded)
	case continues:
		slots--
	default:
		p.announce(&tx, 0)
	}
	p.used += slots
}

// announce queues a Large frame in a send slot, which the caller knows to be free. The receive slot
// has been taken before.
func (p *peer) announce(t *txOp, flags framing.Flags) {
	f := t.largeFrame(flags)
	p.frame(&f, t.stream, f.payload[:f.n], true)
}

// largeFrame is the frame that announces the write, and that is now about to leave.
func (t *txOp) largeFrame(flags framing.Flags) ctlFrame {
	f := ctlFrame{t: framing.TypeLarge, flags: flags, stream: t.stream.id, pos: t.pos, n: framing.LargeSize, leaves: t.stream}
	t.stream.leaving++
	t.large.Encode(f.payload[:])
	return f
}

// believes reports whether completion data may be the peer's. An endpoint whose completion data
// is shorter than the peer's cannot tell.
func (p *peer) believes(data uint64) bool {
	switch {
	case p.err != nil || !p.rule.hasData():
		return false
	case p.rule == byBareData || p.c.attr.CQDataSize < proofSize:
		return true
	}
	return framing.Proven(data, p.proofIn)
}

// landed takes in the completion data of an RDMA write. All that it believes is that a write
// which we had granted is complete. If the peer to which we had granted it has room for a proof
// in completion data, or another way to report writes, nobody else is believed.
func (c *core) landed(data uint64) {
	imm := framing.Immediate(data)
	p := c.peers[c.leases.named(imm.Lease()).peer]
	if p == nil || !p.believes(data) {
		c.stats.WritesStray++
		return
	}
	if !p.useSlot() {
		return
	}
	p.grant() // a write takes no receive
	if s, w := c.writeOf(imm); w == nil || w.landed {
		c.stats.WritesStray++
	} else {
		w.landed, w.continues = true, imm.Continues()
		p.violates(s.advance())
	}
}

// writeOf returns the write that completion data names, and its stream; nil if no such write can be
// in flight.
func (c *core) writeOf(imm framing.Immediate) (*stream, *landing) {
	l := c.leases.named(imm.Lease()).lease
	if l == nil || l == l.stream.oldLease || l.stream.gone() {
		return nil, nil
	}
	return l.stream, l.slot(imm.Seq())
}
