package engine

// putStage gives a staging chunk back that takeStage took for the peer.
func (p *peer) putStage(slot uint32) {
	p.staged--
	p.c.stage.Put(slot)
	p.c.freed = true
}

// lines are the peers that wait for what all share, in the order in which they came. Who
// has been served and waits for more is last again.
type lines [lineKinds]fifo[*peer]

// lineKind is what a line waits for.
type lineKind uint8

const (
	lineFrames lineKind = iota // send slots
	lineStage                  // staging chunks
	lineQueue                  // operations in flight
	lineTurn                   // writers that were woken to come back: see wakeWriters
	lineKinds
)

// lineUp has the peer served when there is more of what it lacks.
func (c *core) lineUp(p *peer, k lineKind) {
	if !p.inLine[k] && p.err == nil {
		p.inLine[k] = true
		c.lines[k].push(p)
	}
}

// serve has those go on that wait in lines, as far as there is something for them. A look
// that is in vain is at a peer that holds much already (see mayHave), and there cannot be
// more of these than there are slots: what it costs does not grow with the peers that wait.
func (c *core) serve() {
	for k := range lineKinds {
		for n := c.lines[k].len(); n > 0 && c.spare(k) > 0; n-- {
			p := c.lines[k].pop()
			p.inLine[k] = false
			c.stats.steps++
			p.flush()
			p.wakeWriters()
		}
	}
}

// spare is how much there is for those that wait in a line.
func (c *core) spare(k lineKind) int {
	switch k {
	case lineFrames:
		return c.tx.Free()
	case lineStage:
		return c.stage.Free()
	case lineQueue:
		return c.queueLeft()
	}
	return c.wakeable()
}

// wakeable is how many more writers there is something for.
func (c *core) wakeable() int {
	return max(1, min(c.stage.Free(), c.tx.Free()-ctlSlots)) - c.awake
}
