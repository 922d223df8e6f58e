package rdmanet

import (
	"cmp"
	"net"
	"slices"
	"time"

	"github.com/seed202c38ff/fabricnet/internal/engine"
)

// ConnState is a snapshot of an open Conn.
type ConnState struct {
	ConnInfo
	Local, Remote net.Addr
	Phase         ConnPhase
	// Unread is how many bytes have arrived that no Read has returned yet.
	Unread uint64
	// Reading reports whether a Read waits.
	Reading bool
	// WaitsFor is what a Write or Close waits for: StallWindow and the like, "" if none waits.
	WaitsFor string
	// PollTime is how long a call that waited now would poll before it sleeps. It is learnt: see
	// Transport.PollTime.
	PollTime time.Duration
}

// ConnPhase says which directions of a Conn have ended.
type ConnPhase string

// The phases of a Conn. Once Close has returned, it is not listed any more.
const (
	PhaseOpen        ConnPhase = "open"         // both directions are open
	PhaseWriteClosed ConnPhase = "write-closed" // CloseWrite was called
	PhaseReadClosed  ConnPhase = "read-closed"  // the peer has ended its direction
	PhaseEnded       ConnPhase = "ended"        // both have ended; only Close is missing
	PhaseClosing     ConnPhase = "closing"      // Close waits for the peer to have everything
	PhaseReset       ConnPhase = "reset"        // the conn has failed; only Close is missing
	// PhaseUnknown means that a call into the provider hangs, since the peer has died or is
	// stopped.
	PhaseUnknown ConnPhase = "unknown"
)

var phases = [...]ConnPhase{
	engine.Unknown: PhaseUnknown, engine.Open: PhaseOpen, engine.WriteClosed: PhaseWriteClosed, engine.ReadClosed: PhaseReadClosed,
	engine.Ended: PhaseEnded, engine.Closing: PhaseClosing, engine.Reset: PhaseReset,
}

var waits = [...]string{
	engine.WaitsNothing: "", engine.WaitsWindow: StallWindow, engine.WaitsRing: StallRing, engine.WaitsPeerSlots: StallPeerSlots,
	engine.WaitsSendSlots: StallSendSlots, engine.WaitsStage: StallStaging, engine.WaitsQueue: StallQueue, engine.WaitsTurn: StallTurn,
	engine.WaitsDelivery: StallDelivery,
}

// register makes Conns list a conn, until forgetConn.
func (t *Transport) register(c *conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.live[c] = struct{}{}
}

func (t *Transport) forgetConn(c *conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.live, c)
}

// Conns returns a snapshot of each open conn, in the order in which they were opened. It
// includes those that wait for Accept, but none that use plain TCP. The conns of one endpoint are
// seen at about the same moment.
func (t *Transport) Conns() []ConnState {
	t = transportOr(t)
	t.mu.Lock()
	conns := keys(t.live)
	t.mu.Unlock()
	slices.SortFunc(conns, func(a, b *conn) int { return cmp.Compare(a.id, b.id) })
	type group struct {
		at    []int
		conns []*engine.Conn
	}
	groups := make(map[*engine.Endpoint]*group)
	for i, c := range conns {
		g := groups[c.link.ep.engine]
		if g == nil {
			g = new(group)
			groups[c.link.ep.engine] = g
		}
		g.at, g.conns = append(g.at, i), append(g.conns, c.fabric)
	}
	states := make([]engine.State, len(conns))
	for e, g := range groups {
		for i, s := range e.States(g.conns) {
			states[g.at[i]] = s
		}
	}
	out := make([]ConnState, len(conns))
	for i, c := range conns {
		out[i] = c.state(states[i])
	}
	return out
}

func (c *conn) state(s engine.State) ConnState {
	local, remote := c.addrs()
	return ConnState{
		ConnInfo: c.counted(s.Counters), Local: local, Remote: remote,
		Phase: phases[s.Phase], Unread: s.Unread, Reading: s.Reading, WaitsFor: waits[s.Waits],
		PollTime: c.link.ep.engine.PollTime(),
	}
}
