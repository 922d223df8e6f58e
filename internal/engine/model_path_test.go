package engine

import "errors"

// checkPath begins the pair's path check. Conns do not wait for it here: it runs beside other traffic.
func (p *pair) checkPath() {
	locked(p.hosts[0].e, p.peers[0].startCheck)
}

// settlePaths does what a handshake does when a path check ends: it tells the listening side, or gives the peer up.
func (m *model) settlePaths() {
	for _, p := range m.pairs {
		dials, listens := p.peers[0], p.hosts[1]
		switch {
		case p.checked || dials.check < checkPassed || listens.frozen() || listens.down:
		case dials.check == checkFailed:
			p.checked = true
			m.check(p.mayFail || dials.err != nil || m.opt.tight > 0 && errors.Is(dials.checkErr, ErrMemory),
				"pair %d: the path check fails: %v", p.id, dials.checkErr)
			if !p.mayFail {
				p.mayFail = true
				p.fail(0, dials.checkErr)
			}
		default:
			p.checked = true
			m.check(p.peers[1].check == checkPassed, "pair %d: only one side has passed the path check", p.id)
			dials.endCheck()
			locked(listens.e, p.peers[1].endCheck)
		}
	}
}

// checking reports whether the path check, or the close of its stream, goes on.
func (p *pair) checking() bool {
	return !p.mayFail && (!p.checked || p.peers[0].checkStream != nil || p.peers[1].checkStream != nil)
}
