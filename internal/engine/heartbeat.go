package engine

// Sent is how many messages were sent to the peer over the fabric, modulo 2^32, as heartbeats tell it.
func (p *Peer) Sent() uint32 { return p.p.tally.sent.Load() }

// Heartbeat takes in a heartbeat of the peer, and with it how many messages the peer has sent. It does
// not take the lock, which a call that hangs in the provider may
// hold for ever: a goroutine does, one for each peer at a time. The caller bounds how often it is
// called.
func (p *Peer) Heartbeat(sent uint32) {
	p.e.poller.Look()
	p.p.tally.told.Store(sent)
	if p.p.tally.coming.CompareAndSwap(false, true) {
		go p.e.beat(p.p)
	}
}

// beat takes in a heartbeat. Nothing counts as lost that lies in the completion queue.
func (e *Endpoint) beat(p *peer) {
	if e.poller.Closing() {
		return
	}
	e.enter()
	loses := p.beat()
	e.leave()
	if !loses {
		return
	}
	defer e.poller.Watch()()
	e.poller.Drain(drainTime)
	e.enter()
	if err := p.loss(); err != nil {
		p.doom(err)
	}
	e.leave()
}
