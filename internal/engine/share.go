package engine

// putStage gives back a staging chunk that takeStage took for the peer.
func (p *peer) putStage(slot uint32) {
	p.staged--
	p.c.stage.Put(slot)
	p.gaveBack()
}

// gaveBack notes that the peer holds less of what all peers share. If it waits for more, it may
// be allowed to have that now, and nothing else would serve it: see serve. After a completion the
// peer is looked at anyway.
func (p *peer) gaveBack() {
	p.c.freed = true
	if p.inLine[lineMoreSlots] || p.inLine[lineMoreStage] {
		p.c.touch(p)
	}
}

// lines are the peers that wait for what all peers share, in the order in which they came. A peer
// that has been served and waits for more goes to the end again.
type lines [lineKinds]fifo[*peer]

// lineKind is what the peers in a line wait for: their first of something, or more of it.
type lineKind uint8

const (
	lineFrames lineKind = iota // a send slot for a control frame
	lineWrites                 // a send slot for data
	lineStage                  // a staging chunk
	lineQueue                  // an operation in flight
	lineMoreSlots
	lineMoreStage
	lineMoreQueue
	lineTurn // that writers which were woken come back: see wakeWriters
	lineKinds
)

// lineUp has the peer, which holds held of what it lacks, served when there is more of that.
func (c *core) lineUp(p *peer, k lineKind, held int) {
	if held > 0 {
		switch k {
		case lineFrames, lineWrites:
			k = lineMoreSlots
		case lineStage:
			k = lineMoreStage
		case lineQueue:
			k = lineMoreQueue
		}
	}
	if !p.inLine[k] && p.err == nil {
		p.inLine[k] = true
		c.lines[k].push(p)
	}
}

// vainLooks is how many looks at a line may be in vain before the rest of it is left alone.
const vainLooks = 4

// serve lets peers that wait in lines go on, as far as there is something for them. A look at
// a peer that already holds too much (see mayHave) is in vain. Since such a peer is also served
// when it gives back what it holds, not all of them have to be looked at, however many there are.
func (c *core) serve() {
	for k := range lineKinds {
		vain := 0
		for n := c.lines[k].len(); n > 0 && vain < vainLooks && c.spare(k) > 0; n-- {
			p := c.lines[k].pop()
			p.inLine[k] = false
			c.stats.steps++
			p.flush()
			p.wakeWriters()
			if p.inLine[k] && k >= lineMoreSlots && k <= lineMoreQueue {
				vain++
			}
		}
	}
}

// spare is how much there is for the peers that wait in a line.
func (c *core) spare(k lineKind) int {
	switch k {
	case lineFrames:
		return c.tx.Free()
	case lineWrites:
		return c.tx.Free() - ctlSlots
	case lineStage:
		return c.stage.Free()
	case lineQueue:
		return c.queueLeft()
	case lineMoreSlots:
		return c.mostHeld(c.dataSlots()) + 1
	case lineMoreStage:
		return c.mostHeld(c.chunks()) // a peer that waits here holds at least one
	case lineMoreQueue:
		return c.mostHeld(c.operations())
	}
	return c.wakeable()
}

// wakeable is how many more writers may be woken, since there is something for them.
func (c *core) wakeable() int {
	return max(1, min(c.stage.Free(), c.tx.Free()-ctlSlots)) - c.awake
}

// dataSlots is what mostHeld needs to know of the send slots for data. Some are left to control
// frames.
func (c *core) dataSlots() (free, all, peers int) {
	return c.tx.Free() - ctlSlots, c.tx.Len() - c.dead.frames, c.reserved()
}

// chunks is the same of staging memory.
func (c *core) chunks() (free, all, peers int) {
	return c.stage.Free(), c.stage.Len() - c.dead.chunks, len(c.order) - 1
}

// operations is the same of operations in flight.
func (c *core) operations() (free, all, peers int) {
	return c.queueLeft(), c.depth, len(c.order) - 1
}
