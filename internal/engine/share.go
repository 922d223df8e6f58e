package engine

// What all peers of an endpoint draw from - send slots, staging chunks,
// operations in flight - must not end up with those that have stopped taking
// anything, as a process does that is suspended, until its heartbeats run out.
// So a peer gets no more than what is left when it asks, and an eighth of it all
// is only for peers that hold nothing. The first that stops ends up with less than
// a half, the next with less than a half of the rest, and so on. Whoever moves gives
// back what it holds and gets more. What dead peers hold counts for none of it: see
// makeUp, which makes up for it.

// mayHave reports whether a peer that holds so many of something gets another
// one, of which so many are free.
func (p *peer) mayHave(held, free, all int) bool {
	return free > 0 && (held < free-all/8 || held == 0 || p.c.attr.PerPeer) // which has no others
}

// mayWrite reports whether data gets a send slot. Some are left to control
// frames.
func (p *peer) mayWrite() bool {
	return p.mayHave(p.frames+p.pends, p.c.tx.Free()-ctlSlots, p.c.tx.Len()-p.c.dead.frames)
}

// mayFrame reports whether a control frame gets a send slot. Data that waits for
// a receive slot does not count: what brings that must not wait for it.
func (p *peer) mayFrame() bool {
	return p.mayHave(p.frames, p.c.tx.Free(), p.c.tx.Len()-p.c.dead.frames)
}

// mayStage reports whether an RDMA write gets a staging chunk.
func (p *peer) mayStage() bool {
	return p.mayHave(p.staged, p.c.stage.Free(), p.c.stage.Len()-p.c.dead.chunks)
}

// mayFly reports whether the fabric gets another operation.
func (p *peer) mayFly() bool { return p.mayHave(p.flying, p.c.queueLeft(), p.c.depth) }

// queueLeft is how many operations more there may be in flight: dead peers' count only
// where they take all that the provider has beyond depth.
func (c *core) queueLeft() int { return min(c.depth+c.dead.flying, c.attr.TxDepth) - c.flying }

// putStage gives a staging chunk back that takeStage took for the peer.
func (p *peer) putStage(slot uint32) {
	p.staged--
	p.c.stage.Put(slot)
	p.c.freed = true
}

// lines are the peers that wait for what all share, in the order in which they came. Who
// has been served and waits for more is last again.
type lines [lineKinds][]*peer

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
		c.lines[k] = append(c.lines[k], p)
	}
}

// serve has those go on that wait in lines, as far as there is something for them. A look
// that is in vain is at a peer that holds much already (see mayHave), and there cannot be
// more of these than there are slots: what it costs does not grow with the peers that wait.
func (c *core) serve() {
	for k := range lineKinds {
		for n := len(c.lines[k]); n > 0 && c.spare(k) > 0; n-- {
			p := c.lines[k][0]
			c.lines[k] = c.lines[k][1:]
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
